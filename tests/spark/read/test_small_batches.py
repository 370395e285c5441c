"""Micro-batches whose rows a stream's driver hands over with the plan; against a real broker, without a session."""

import uuid

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from pyromq import Admin, Message, Producer
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.options import STREAM
from pyromq.spark.read import reader as small_batches
from pyromq.spark.read.reader import RocketMQStreamReader
from pyromq.spark.read.stream_offset import StreamOffset

ROWS = 30


@pytest.fixture(scope="module")
def topic(namesrv):
    """Two queues, of which one has all messages; every third has another tag."""
    name = f"small-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin, Producer("small-batches", namesrv) as producer:
        admin.create_topic(name, 2)
        for n in range(ROWS):
            producer.send(Message(name, b"%d" % n, tags="third" if n % 3 == 0 else "other"), queue=queue(name, 1))
    return name


def queue(topic, number):
    return MessageQueue(topic, "broker-a", number)


def reader(namesrv, topic, **options):
    given = {"namesrvAddr": namesrv, "subscribe": topic} | options
    return RocketMQStreamReader(read_options(given, STREAM), ["body"])


def whole(topic, rows=ROWS):
    """Return the offsets of a micro-batch of all messages, as Spark knows them."""
    return (StreamOffset({queue(topic, 0): 0, queue(topic, 1): place}).as_json() for place in (0, rows))


def numbers(batches):
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


def planned(reader, topic, rows=ROWS):
    """Plan as PySpark does it; return the partitions, and the rows that come with them."""
    start, end = whole(topic, rows)
    partitions = reader.partitions(start, end)
    return partitions, list(reader.getCache(start, end)) if isinstance(reader, _SimpleStreamReaderWrapper) else None


def test_a_small_micro_batch_comes_with_its_plan_and_a_task_could_read_the_same(namesrv, topic):
    stream = reader(namesrv, topic)
    (partition,), rows = planned(stream, topic)
    assert numbers(rows) == numbers(stream.read(partition)) == list(range(ROWS))
    assert not isinstance(stream, _SimpleStreamReaderWrapper)  # else the query's progress has no `latestOffset`


def test_rows_of_one_micro_batch_are_not_handed_over_with_the_next(namesrv, topic):
    stream = reader(namesrv, topic, maxRowsOnDriver="20")
    _, first = planned(stream, topic, rows=10)
    (partition,), second = planned(stream, topic)
    assert (numbers(first), second) == (list(range(10)), None)
    assert numbers(stream.read(partition)) == list(range(ROWS))


@pytest.mark.parametrize(
    "options",
    [{"maxRowsOnDriver": "0"}, {"maxRowsOnDriver": "29"}, {"minPartitions": "2"}, {"maxRecordsPerPartition": "9"}],
)
def test_tasks_read_what_is_too_much_or_meant_for_them(namesrv, topic, options):
    stream = reader(namesrv, topic, **options)
    partitions, rows = planned(stream, topic)
    assert rows is None
    assert sorted(n for each in partitions for n in numbers(stream.read(each))) == list(range(ROWS))


def test_tasks_read_what_has_too_many_bytes(namesrv, topic, monkeypatch):
    monkeypatch.setattr(small_batches, "MAX_BYTES", 10)
    assert planned(reader(namesrv, topic), topic)[1] is None


def test_tags_that_leave_nothing_are_no_rows(namesrv, topic):
    _, rows = planned(reader(namesrv, topic, tagFilter="none"), topic)
    assert numbers(rows) == []
    _, rows = planned(reader(namesrv, topic, tagFilter="third"), topic)
    assert numbers(rows) == list(range(0, ROWS, 3))


def test_nothing_to_read_is_no_task(namesrv, topic):
    assert planned(reader(namesrv, topic), topic, rows=0) == ([], None)


def test_what_the_driver_cannot_read_is_left_to_tasks(namesrv, topic, caplog):
    stream = reader(namesrv, topic)
    partitions, rows = planned(stream, topic, rows=ROWS + 1)
    assert (len(partitions), rows) == (1, None)
    assert "tasks will" in caplog.text


def test_the_lag_of_a_stream_is_in_a_file_where_an_option_names_one(namesrv, topic, tmp_path):
    file = tmp_path / "lag.prom"
    stream = reader(namesrv, topic, group="small-lag", lagPrometheus=str(file), maxOffsetsPerTrigger="10")
    start, _ = whole(topic)
    stream.latestOffset(start, stream.getDefaultReadLimit())
    assert f'pyromq_spark_lag_messages{{query="small-lag",topic="{topic}",broker="broker-a",queue="1"}} {ROWS}\n' in (
        file.read_text()
    )


def test_a_tombstone_is_read_as_a_null_body(namesrv):
    name = f"tombs-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin, Producer("small-batches", namesrv) as producer:
        admin.create_topic(name, 1)
        producer.send(Message(name, b"\0", properties={"TOMBSTONE": "true"}))
        producer.send(Message(name, b"\0"))
        producer.send(Message(name, b"x", properties={"TOMBSTONE": "true"}))
    start, end = (StreamOffset({queue(name, 0): place}).as_json() for place in (0, 3))
    stream = reader(namesrv, name)
    stream.partitions(start, end)
    (batch,) = stream.getCache(start, end)
    assert batch.column("body").to_pylist() == [None, b"\0", b"x"]
