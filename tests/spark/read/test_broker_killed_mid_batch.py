"""A broker process killed with SIGKILL in the middle of a micro-batch, and started again: the query goes on by itself.

The same broker has the topic that is read and the one that is written. Short forms: `write/test_broker_kills.py` and
`write/test_patience.py`.
"""

import time

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from pyspark.sql import functions as F
from tests.spark.serving import Served, numbers_seen

from pyromq import Admin, Message, Producer
from pyromq.spark.archive.sink import ArchiveSink
from pyromq.spark.jobs.mirror_job import copies
from pyromq.spark.jobs.settings import JOBS, build

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak]

ROWS, QUEUES, BATCH = 3000, 4, 1000
SOURCE, TARGET = "killed-source", "killed-target"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("killed"))
    served.start()
    with Admin(served.namesrv) as admin, Producer("kills", served.namesrv) as producer:
        admin.create_topic(SOURCE, QUEUES)
        for future in [producer.send_soon(Message(SOURCE, b"%d" % number, keys="k")) for number in range(ROWS)]:
            future.result()
    yield served
    served.stop()


def held(frame, folder):
    """Return the same rows; in the second micro-batch a task says that it is half-way and waits until it may go on."""
    half_way, go_on = str(folder / "half-way"), str(folder / "go-on")

    def hold(batches):
        from pathlib import Path

        from pyspark import TaskContext

        first = TaskContext.get().getLocalProperty("streaming.sql.batchId") == "1"
        for batch in batches:
            yield batch.slice(0, 1)
            if first and batch.num_rows:
                Path(half_way).touch()
                while not Path(go_on).exists():
                    time.sleep(0.05)
                first = False
            yield batch.slice(1)

    return frame.mapInArrow(hold, frame.schema)


def read(spark, served):
    options = {"namesrvAddr": served.namesrv, "subscribe": SOURCE, "startingOffsets": "earliest"}
    small = {"maxOffsetsPerTrigger": BATCH, "pullBatchSize": 50, "arrowBatchRows": 100, "maxRowsOnDriver": 0}
    return spark.readStream.format("rocketmq").options(**options, **small).load()


def run(writer, served, folder):
    """Run a query to its end over a killed broker."""
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        while not (folder / "half-way").exists():
            assert query.isActive, query.exception()
            time.sleep(0.05)
        served.kill()
        (folder / "go-on").touch()
        served.start()
        query.awaitTermination(90)
        assert not query.isActive, "the query hangs"
    finally:
        query.stop()


@pytest.mark.parametrize("form", ["parquet", "rocketmq-archive"])
def test_every_message_is_in_parquet_once(spark, served, tmp_path, form):
    spark.dataSource.register(ArchiveSink)
    writer = held(read(spark, served), tmp_path).writeStream.format(form).option("path", str(tmp_path / "table"))
    run(writer, served, tmp_path)
    files = [str(file) for file in (tmp_path / "table").rglob("*.parquet") if "_pyromq" not in file.parts]
    table = ds.dataset(files, format="parquet").to_table(columns=["body"])
    assert sorted(map(int, table.column("body").to_pylist())) == list(range(ROWS))


@pytest.mark.parametrize("shape", ["sink", "mirror"])
def test_every_message_is_in_the_other_topic_once(spark, served, tmp_path, shape):
    topic = f"{TARGET}-{shape}"
    with Admin(served.namesrv) as admin:
        admin.create_topic(topic, QUEUES)
    rows = held(read(spark, served), tmp_path)
    if shape == "mirror":
        values = {"to_namesrv": served.namesrv, "to_topic": topic, "topics": SOURCE, "checkpoint": "-"}
        rows = copies(rows, build(JOBS["mirror"], values), [F.col("queueId")])
    else:
        rows = rows.select("body", "keys")
    options = {"namesrvAddr": served.namesrv, "delivery": "exactlyOnce", "sendBatchBytes": "2k"}
    writer = rows.writeStream.format("rocketmq").options(**options)
    run(writer if shape == "mirror" else writer.option("topic", topic), served, tmp_path)
    assert numbers_seen(served.namesrv, topic, ROWS) == list(range(ROWS))
