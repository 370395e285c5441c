"""What is wrong ends a read, a write or a query with one clear exception, soon, and leaves nothing half-written."""

import asyncio
import json
import uuid

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F
from tests.undecodable import BOMB, send_three

from pyromq import Admin, Message, Producer

pytestmark = pytest.mark.spark

PATIENT = {"deadlineMs": "3600000"}  # of all that is tried again
SOON = 200  # seconds: less than that, and than pytest waits


@pytest.fixture
def topic(namesrv):
    name = f"bad-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin:
        admin.create_topic(name, 2)
    return name


@pytest.fixture(scope="module")
def read_only(namesrv):
    """A topic of one message that nobody may write to any more."""
    name = f"bad-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin, Producer("bad-input", namesrv) as producer:
        admin.create_topic(name, 1)
        producer.send(Message(name, b"1"))
        admin.create_topic(name, 1, permission="r", replace=True)
    return name


@pytest.fixture(scope="module")
def write_only(namesrv):
    name = f"bad-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin:
        admin.create_topic(name, 1, permission="w")
    return name


def refused(work, kind, *texts):
    """See that `work` fails, not trying again, with an exception of ours in what Spark raises; return all it says."""
    with pytest.raises(Exception) as caught:
        work()
    said = str(caught.value)
    assert f"pyromq.errors.{kind}: " in said or f"pyromq.spark.read.bounds.{kind}: " in said, said[-2000:]
    for text in texts:
        assert text in said, said[-2000:]


def rows(spark):
    return spark.range(4).selectExpr("cast(id as string) body")


def load(spark, namesrv, topic, **options):
    given = {"namesrvAddr": namesrv, "subscribe": topic, **PATIENT} | options
    return spark.read.format("rocketmq").options(**given).load()


def save(frame, namesrv, topic, **options):
    given = {"namesrvAddr": namesrv, "topic": topic, **PATIENT} | options
    frame.write.format("rocketmq").options(**given).mode("append").save()


def stream(spark, namesrv, topic, folder, **options):
    """Run a query over what is available into nothing, and see that it is over when this returns."""
    given = {"namesrvAddr": namesrv, "subscribe": topic, "startingOffsets": "earliest", **PATIENT} | options
    frame = spark.readStream.format("rocketmq").options(**given).load()
    run(frame.writeStream.format("noop"), folder)


def run(writer, folder):
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(SOON), "the query hangs"
    finally:
        assert not query.isActive, "the query hangs"
        query.stop()


def count(namesrv, topic):
    with Admin(namesrv) as admin:
        return sum(each.max_offset - each.min_offset for each in admin.topic_status(topic))


class TestReading:
    @pytest.mark.parametrize(
        ("options", "texts"),
        [
            ({"pullBytes": "many"}, ["option pullBytes is 'many'"]),
            ({"maxOffsetsPerTrigger": "5"}, ["option maxOffsetsPerTrigger is for a stream"]),
            ({"startingOffsets": "latest", "startingTimestamp": "0"}, ["startingOffsets and startingTimestamp"]),
            ({"startingOffsets": "group"}, ["startingOffsets=group need option group"]),
            ({"path": "/orders"}, ["option 'path' does not exist for a read", "load() takes no path"]),
        ],
    )
    def test_a_wrong_option_is_named_at_planning(self, spark, namesrv, topic, options, texts):
        refused(lambda: load(spark, namesrv, topic, **options).count(), "UsageError", *texts)

    def test_a_name_server_that_is_not_there_is_named(self, spark, topic, tmp_path):
        nobody = "127.0.0.1:1"
        refused(lambda: load(spark, nobody, topic).count(), "NoNameServer", nobody)
        refused(lambda: stream(spark, nobody, topic, tmp_path), "NoNameServer", nobody)

    def test_a_topic_that_is_not_there_is_named(self, spark, namesrv, tmp_path):
        refused(lambda: load(spark, namesrv, "nowhere").count(), "TopicNotFound", "nowhere")
        refused(lambda: stream(spark, namesrv, "nowhere", tmp_path), "TopicNotFound", "nowhere")

    def test_a_topic_that_may_not_be_read_is_named(self, spark, namesrv, write_only, tmp_path):
        refused(lambda: load(spark, namesrv, write_only).count(), "NoPermission", write_only)
        refused(lambda: stream(spark, namesrv, write_only, tmp_path), "NoPermission", write_only)

    def test_offsets_behind_a_queues_end_are_named(self, spark, namesrv, topic, tmp_path):
        beyond = {"startingOffsets": json.dumps({topic: {"broker-a": {"1": 77}}})}
        texts = (f"queue 1 of topic {topic} at broker-a is 77; the queue holds 0 to 0", "failOnDataLoss")
        refused(lambda: load(spark, namesrv, topic, **beyond).count(), "DataLoss", *texts)
        refused(lambda: stream(spark, namesrv, topic, tmp_path, **beyond), "DataLoss", *texts)

    def test_a_body_that_cannot_be_decompressed_ends_no_query(self, spark, namesrv, topic):
        asyncio.run(send_three(namesrv, topic))
        source = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=topic)
        bodies = [row.body for row in source.load().orderBy("queueOffset").collect()]
        assert [bytes(body) if body else None for body in bodies] == [b"first", None, b"last"]
        (raw,) = source.option("onUndecodable", "raw").load().where("properties['UNDECODABLE'] is not null").collect()
        assert bytes(raw.body) == BOMB
        assert "decompresses to more than 16777216" in raw.properties["UNDECODABLE"]
        refused(source.option("onUndecodable", "fail").load().collect, "UndecodableBody", "decompresses to more than")

    def test_a_checkpoint_of_another_topic_is_named(self, spark, namesrv, topic, read_only, tmp_path):
        stream(spark, namesrv, read_only, tmp_path)
        text = f"the checkpoint is of topic {read_only}"
        refused(lambda: stream(spark, namesrv, topic, tmp_path), "UsageError", text, "new checkpoint location")

    def test_a_checkpoint_of_another_version_is_named(self, spark, namesrv, read_only, tmp_path):
        stream(spark, namesrv, read_only, tmp_path)
        (planned,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
        planned.write_text(planned.read_text().replace('{"v": 1,', '{"v": 9,').replace('{"v":1,', '{"v":9,'))
        planned.with_name(f".{planned.name}.crc").unlink(missing_ok=True)
        refused(lambda: stream(spark, namesrv, read_only, tmp_path), "UsageError", "is not of version 1")


class TestWriting:
    def test_a_name_server_that_is_not_there_is_named(self, spark, topic, tmp_path):
        refused(lambda: save(rows(spark), "127.0.0.1:1", topic), "NoNameServer", "127.0.0.1:1")

    def test_a_topic_that_may_not_be_written_is_named(self, spark, namesrv, read_only):
        refused(lambda: save(rows(spark), namesrv, read_only), "NoPermission", read_only)
        assert count(namesrv, read_only) == 1

    @pytest.mark.parametrize("delivery", ["idempotent", "exactlyOnce"])
    @pytest.mark.parametrize(
        ("column", "kind", "text"),
        [
            ("if(id = 3, null, string(id)) body", "IllegalMessage", "has null body"),
            ("repeat('x', 100 + 2000 * int(id)) body", "MessageRefused", "bytes of body"),
        ],
    )
    def test_a_row_that_cannot_be_sent_fails_the_write(self, spark, namesrv, topic, delivery, column, kind, text):
        frame = spark.range(0, 4, 1, 1).selectExpr(column)
        small = {"maxMessageBytes": "4k", "sendBatchBytes": "4k", "delivery": delivery}
        refused(lambda: save(frame, namesrv, topic, **small), kind, text, topic)
        assert count(namesrv, topic) == 0 or delivery == "idempotent"

    def test_a_row_that_cannot_be_sent_ends_a_query_and_nothing_of_its_batch_is_seen(
        self, spark, namesrv, topic, read_only, tmp_path
    ):
        read = {"namesrvAddr": namesrv, "subscribe": read_only, "startingOffsets": "earliest"}
        frame = spark.readStream.format("rocketmq").options(**read).load().selectExpr("cast(null as binary) body")
        writer = frame.writeStream.format("rocketmq").options(namesrvAddr=namesrv, topic=topic, delivery="exactlyOnce")
        refused(lambda: run(writer, tmp_path), "IllegalMessage", "has null body", topic)
        assert count(namesrv, topic) == 0

    @pytest.mark.parametrize(
        ("columns", "options", "text"),
        [
            ("id body", {}, "column body is bigint; the sink takes binary or string"),
            ("'x' body, 1 delayLevel", {"delivery": "exactlyOnce"}, "batches cannot be delayed"),
            ("'x' body", {"delivery": "once"}, "option delivery is 'once'"),
            ("'x' body", {"path": "/orders"}, "save() takes no path"),
            ("'x' body", {"jobId": "j"}, "option jobId is for delivery=exactlyOnce or idempotent"),
            ("'x' body", {"onTooLarge": "dlq"}, "onTooLarge=dlq and deadLetterTopic belong together"),
        ],
    )
    def test_wrong_columns_and_options_are_named_at_planning(self, spark, namesrv, topic, columns, options, text):
        frame = spark.range(1).selectExpr(*columns.split(", "))
        refused(lambda: save(frame, namesrv, topic, **options), "UsageError", text)

    def test_a_queue_that_is_not_there_is_named(self, spark, namesrv, topic):
        frame = rows(spark).withColumn("queueId", F.lit(9))
        refused(lambda: save(frame, namesrv, topic), "UsageError", f"topic {topic} has no queue 9 at broker-a")
