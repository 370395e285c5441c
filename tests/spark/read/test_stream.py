"""`spark.readStream.format("rocketmq")` against a real broker: few tests, since each query costs a second or more."""

import json
import time
import uuid

import pytest

pytest.importorskip("pyspark")

from pyromq import Admin, Message, Producer
from pyromq.message import MessageQueue

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(namesrv):
    name = f"spark-stream-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin:
        admin.create_topic(name, 4)
    return name


@pytest.fixture(scope="module")
def producer(namesrv):
    with Producer("spark-stream-test", namesrv) as producer:
        yield producer


def send(producer, topic, numbers):
    places = [MessageQueue(topic, "broker-a", number) for number in range(4)]
    for future in [producer.send_soon(Message(topic, b"%d" % n), queue=places[n % 4]) for n in numbers]:
        future.result()


def run(spark, namesrv, topic, folder, **options):
    """Run a query over what is available into Parquet; return its progress, batch by batch."""
    given = {"namesrvAddr": namesrv, "subscribe": topic, "startingOffsets": "earliest"} | options
    frame = spark.readStream.format("rocketmq").options(**given).load()
    query = (
        frame.selectExpr("int(string(body)) n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    try:
        query.awaitTermination(60)
    finally:
        query.stop()
    return query.recentProgress


def rows(spark, folder):
    return sorted(row.n for row in spark.read.parquet(str(folder / "table")).collect())


def lose_newest_commit(folder):
    """Let the last batch look as if Spark had died before it was done."""
    newest = max((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    newest.unlink()


def test_what_is_available_is_read_in_batches_and_a_restart_goes_on_there(spark, namesrv, topic, producer, tmp_path):
    send(producer, topic, range(100))
    progress = run(spark, namesrv, topic, tmp_path, maxOffsetsPerTrigger="40", group=topic)
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [40, 40, 20]
    send(producer, topic, range(100, 130))
    run(spark, namesrv, topic, tmp_path, group=topic)
    assert rows(spark, tmp_path) == list(range(130))
    with Admin(namesrv) as admin:
        assert [(each.consumer_offset, each.lag) for each in admin.group_progress(topic)] == [
            (33, 0),
            (33, 0),
            (32, 0),
            (32, 0),
        ]


def test_a_batch_that_was_not_committed_is_repeated_with_the_same_rows(spark, namesrv, topic, producer, tmp_path):
    send(producer, topic, range(50))
    run(spark, namesrv, topic, tmp_path, maxOffsetsPerTrigger="20", maxRowsOnDriver="0")  # then on the driver
    lose_newest_commit(tmp_path)
    send(producer, topic, range(50, 60))
    run(spark, namesrv, topic, tmp_path)
    assert rows(spark, tmp_path) == list(range(60))


def test_a_topic_created_again_ends_the_query_and_says_so(spark, namesrv, topic, producer, tmp_path):
    send(producer, topic, range(10))
    run(spark, namesrv, topic, tmp_path)
    with Admin(namesrv) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 4)
    send(producer, topic, range(30))
    with pytest.raises(Exception, match=r"was deleted and created again"):
        run(spark, namesrv, topic, tmp_path)


def test_rows_that_came_with_the_plan_are_there_without_their_topic(spark, namesrv, topic, producer, tmp_path):
    seen = []

    def look(frame, batch):
        with Admin(namesrv) as admin:
            admin.delete_topic(topic)
        seen.extend(int(row.body) for row in frame.select("body").collect())

    send(producer, topic, range(20))
    given = {"namesrvAddr": namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("rocketmq").options(**given).load()
    query = frame.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path)).start()
    try:
        while not seen:  # after that, the query ends: it looks for its topic
            assert query.isActive or seen, query.exception()
            time.sleep(0.02)
    finally:
        query.stop()
    assert sorted(seen) == list(range(20))


def test_an_option_for_batches_is_refused(spark, namesrv, topic, tmp_path):
    with pytest.raises(Exception, match="UsageError: option endingOffsets is for a batch") as caught:
        run(spark, namesrv, topic, tmp_path, endingOffsets="latest")
    assert "UnboundLocalError" not in str(caught.value)


def test_progress_has_the_ends_of_the_queues(spark, namesrv, topic, producer, tmp_path):
    send(producer, topic, range(8))
    (source,) = run(spark, namesrv, topic, tmp_path)[-1]["sources"]
    end, latest = json.loads(source["endOffset"]), json.loads(source["latestOffset"])
    assert end["t"] == latest["t"] == {topic: {"broker-a": {"0": 2, "1": 2, "2": 2, "3": 2}}}
