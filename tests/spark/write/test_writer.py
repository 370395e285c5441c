"""`df.write` and `writeStream` with `format("rocketmq")` against a real broker, in one Spark session."""

import os
import shutil
import time
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from pyromq import Admin, BatchTransactions, PullConsumer

pytestmark = pytest.mark.spark

LINES = 40  # of each file, which is a micro-batch


@pytest.fixture
def topic(namesrv):
    name = f"writer-{uuid4().hex[:8]}"
    with Admin(namesrv) as admin:
        admin.create_topic(name, 4)
    return name


@pytest.fixture
def seen(namesrv):
    """Return the bodies of a topic that can be seen, at least `least` of them after a while."""
    with PullConsumer("writer-check", namesrv) as consumer:

        def read(topic, least=0):
            while sum(map(consumer.max_offset, consumer.queues(topic))) < least:
                pass
            found = []
            for queue in consumer.queues(topic):
                offset = 0
                while offset < consumer.max_offset(queue):
                    result = consumer.pull(queue, offset, 32)
                    found += [message.body.decode() for message in result.messages]
                    offset = result.next_offset
            return sorted(found)

        yield read


@pytest.fixture
def frame(spark):
    return spark.range(0, 100, 1, 4).selectExpr("cast(id as string) as body", "concat('k', id) as keys")


@pytest.fixture
def files(tmp_path):
    """A folder whose files a stream reads one by one."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        lines = range(number * LINES, (number + 1) * LINES)
        file = folder / f"{number}.txt"
        file.write_text("".join(f"{line:04}\n" for line in lines))
        modified = time.time() - 10 + number  # Spark reads files in the order of these times, in milliseconds
        os.utime(file, (modified, modified))
    return folder


ALL_LINES = [f"{line:04}" for line in range(3 * LINES)]


def write(frame, namesrv, **options):
    frame.write.format("rocketmq").options(**({"namesrvAddr": namesrv} | options)).mode("append").save()


def stream(spark, files, namesrv, checkpoint, **options):
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files)).selectExpr("value as body")
    writer = lines.writeStream.format("rocketmq").options(namesrvAddr=namesrv, **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.parametrize("delivery", ["atLeastOnce", "idempotent", "exactlyOnce"])
def test_a_batch_arrives(namesrv, topic, seen, frame, delivery):
    write(frame, namesrv, topic=topic, delivery=delivery)
    assert seen(topic, 100) == sorted(str(number) for number in range(100))


def test_a_job_written_again_exactly_once_changes_nothing(namesrv, topic, seen, frame):
    for _ in range(2):
        write(frame, namesrv, topic=topic, delivery="exactlyOnce", jobId="job")
    assert len(seen(topic, 100)) == 100
    with BatchTransactions("check", namesrv) as batches:
        assert batches.lookup(f"spark-job:job:{topic}").messages == 100


def test_a_failed_task_leaves_nothing_to_see(namesrv, topic, seen, frame):
    broken = frame.selectExpr("if(cast(body as int) = 77, cast(raise_error('no') as string), body) as body")
    with pytest.raises(Exception, match="no"):
        write(broken, namesrv, topic=topic, delivery="exactlyOnce")
    assert seen(topic) == []


def test_an_empty_batch_is_written(namesrv, topic, seen, frame):
    write(frame.where("false"), namesrv, topic=topic, delivery="exactlyOnce")
    assert seen(topic) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topci": "x"}, "option 'topci' is unknown; did you mean topic?"),
        ({"delivery": "once"}, "option delivery is 'once'"),
        ({"namesrvAddr": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"topic": "no spaces"}, "option topic is 'no spaces'"),
        ({"ledger": "nobody", "delivery": "exactlyOnce"}, "no broker 'nobody' is registered"),
    ],
)
def test_wrong_options_fail_at_planning(namesrv, topic, frame, options, text):
    with pytest.raises(Exception) as caught:
        write(frame, namesrv, **({"topic": topic} | options))
    assert text in str(caught.value)


def test_wrong_columns_and_modes_fail_at_planning(namesrv, topic, frame):
    with pytest.raises(Exception, match="the sink needs column body"):
        write(frame.drop("body"), namesrv, topic=topic)
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        frame.write.format("rocketmq").options(namesrvAddr=namesrv, topic=topic).mode("overwrite").save()


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
def test_a_stream_arrives(spark, files, namesrv, topic, seen, tmp_path, delivery):
    stream(spark, files, namesrv, tmp_path / "checkpoint", topic=topic, delivery=delivery)
    assert seen(topic, len(ALL_LINES)) == ALL_LINES


def test_a_batch_that_a_stream_repeats_counts_once(spark, files, namesrv, topic, seen, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    options = {"topic": topic, "delivery": "exactlyOnce"}
    stream(spark, files, namesrv, checkpoint, **options)
    forget_newest_commit(checkpoint)
    (files / "3.txt").write_text("9999\n")
    stream(spark, files, namesrv, checkpoint, **options)
    assert seen(topic, len(ALL_LINES) + 1) == [*ALL_LINES, "9999"]


def test_a_batch_that_a_stream_repeats_at_least_once_is_there_twice(spark, files, namesrv, topic, seen, tmp_path):
    """What the other test would see without the ledger."""
    checkpoint = tmp_path / "checkpoint"
    stream(spark, files, namesrv, checkpoint, topic=topic)
    forget_newest_commit(checkpoint)
    stream(spark, files, namesrv, checkpoint, topic=topic)
    assert len(seen(topic)) == len(ALL_LINES) + LINES


def test_a_batch_that_foreach_batch_repeats_counts_once(spark, files, namesrv, topic, seen, tmp_path):
    """Where a job is named after the batch, as the documentation says."""

    def run():
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files)).selectExpr("value as body")
        options = {"topic": topic, "delivery": "exactlyOnce"}
        writer = lines.writeStream.foreachBatch(
            lambda frame, number: write(frame, namesrv, **options, jobId=f"{topic}-{number}")
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    forget_newest_commit(tmp_path / "checkpoint")
    (files / "3.txt").write_text("9999\n")
    run()
    assert seen(topic, len(ALL_LINES) + 1) == [*ALL_LINES, "9999"]


@pytest.mark.parametrize("place", ["option", "session", "foreachBatch"])
def test_other_rows_under_a_decided_batch_fail_by_name(spark, files, namesrv, topic, seen, tmp_path, place):
    root, options = tmp_path / "root", {"topic": topic, "delivery": "exactlyOnce"}
    checkpoint = root / "copy"

    def run():
        lines = spark.readStream.text(str(files)).selectExpr("value as body")
        writer = lines.writeStream.format("rocketmq").options(namesrvAddr=namesrv, **options)
        if place == "session":
            spark.conf.set("spark.sql.streaming.checkpointLocation", str(root))
            writer = writer.queryName("copy")
        else:
            writer = writer.option("checkpointLocation", str(checkpoint))
        if place == "foreachBatch":
            named = options | {"checkpointLocation": str(checkpoint)}
            writer = writer.foreachBatch(
                lambda frame, number: write(frame, namesrv, jobId=f"{topic}-{number}", **named)
            )
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        finally:
            spark.conf.unset("spark.sql.streaming.checkpointLocation")

    run()
    shutil.copytree(checkpoint, tmp_path / "backup")
    (files / "3.txt").write_text("9998\n")
    run()
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    (files / "4.txt").write_text("9999\n")
    with pytest.raises(Exception, match=r"1.* is decided, with other input: .* Put the newest checkpoint back"):
        run()
    assert seen(topic) == [*ALL_LINES, "9998"]


def test_a_copied_checkpoint_writes_to_another_topic_too(spark, files, namesrv, topic, seen, tmp_path):
    """A copy of a checkpoint has the same query id, so both queries have the same batches."""
    stream(spark, files, namesrv, tmp_path / "checkpoint", topic=topic, delivery="exactlyOnce")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    (files / "3.txt").write_text("9999\n")
    stream(spark, files, namesrv, tmp_path / "checkpoint", topic=topic, delivery="exactlyOnce")
    with Admin(namesrv) as admin:
        admin.create_topic(f"{topic}-copy", 1)
    stream(spark, files, namesrv, tmp_path / "copy", topic=f"{topic}-copy", delivery="exactlyOnce")
    assert seen(f"{topic}-copy") == ["9999"]


def test_a_batch_without_rows_decides_nothing(spark, files, namesrv, topic, seen, tmp_path):
    (files / "2.txt").write_text("")  # the newest file, and so the last batch
    query = stream(spark, files, namesrv, tmp_path / "checkpoint", topic=topic, delivery="exactlyOnce")
    assert seen(topic, 2 * LINES) == ALL_LINES[: 2 * LINES]
    with BatchTransactions("check", namesrv) as batches:
        found = [batches.lookup(f"spark-query:{query.id}:{number}:{topic}") for number in range(3)]
    assert [outcome and outcome.messages for outcome in found] == [LINES, LINES, None]


def test_a_job_of_other_rows_needs_another_name(namesrv, topic, seen, frame):
    options = {"topic": topic, "delivery": "exactlyOnce", "jobId": f"job-{topic}"}
    write(frame, namesrv, **options)
    with pytest.raises(Exception, match=f"spark-job:job-{topic}:{topic} is decided, with 100 rows, and now has 99"):
        write(frame.where("body != '7'"), namesrv, **options)


def test_rows_with_a_sharding_key_stay_in_order_in_one_queue(spark, namesrv, topic):
    """With rows of a key in one task: `repartition` by it, and sorted within."""
    rows = spark.range(0, 4000, 1, 4).selectExpr("id", "concat('k', id % 40) as shardingKey")
    sorted_rows = rows.repartition("shardingKey").sortWithinPartitions("shardingKey", "id")
    write(sorted_rows.selectExpr("string(id) as body", "shardingKey"), namesrv, topic=topic, sendBatchBytes="2k")
    read = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=topic, systemProperties="true").load()
    found = {}
    for row in read.orderBy("queueId", "queueOffset").collect():
        found.setdefault(row.properties["__SHARDINGKEY"], []).append((row.queueId, int(row.body)))
    assert len(found) == 40
    for key, places in found.items():
        assert len({queue for queue, _ in places}) == 1
        assert [number for _, number in places] == list(range(int(key[1:]), 4000, 40))


def test_a_job_id_is_not_for_streams(spark, files, namesrv, topic, tmp_path):
    with pytest.raises(Exception, match="option jobId is for a batch, and this is a stream"):
        stream(spark, files, namesrv, tmp_path / "checkpoint", topic=topic, delivery="exactlyOnce", jobId="j")


def forget_newest_commit(checkpoint):
    """Let Spark believe that its last batch was not committed."""
    commits: Path = checkpoint / "commits"
    newest = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
