"""`spark.read.format("rocketmq")` against a real broker."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from pyromq import Admin, Message, Producer
from pyromq.errors import NoNameServer, TopicNotFound
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.read.bounds import DataLoss
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.range_reader import bundles, client_of
from pyromq.spark.read.reader import RocketMQReader

TOPIC = "spark-orders"
COUNT = 500


@pytest.fixture(scope="module")
def topic(namesrv):
    """A topic of four queues with 500 messages, every fifth tagged `five`."""
    with Admin(namesrv) as admin, Producer("spark-test", namesrv) as producer:
        admin.create_topic(TOPIC, 4)
        queues = producer.queues(TOPIC)
        for number in range(COUNT):
            tags = "five" if number % 5 == 0 else "other"
            message = Message(TOPIC, b"%d" % number, tags=tags, keys=f"k{number}", properties={"n": str(number)})
            producer.send(message, queue=queues[number % 4])
    return TOPIC


def reader_of(namesrv, columns=("body",), **options):
    given = {"namesrvAddr": namesrv, "subscribe": TOPIC} | options
    return RocketMQReader(read_options(given), list(columns))


def bodies(reader):
    found = []
    for part in reader.partitions():
        for batch in reader.read(part):
            found += batch.column("body").to_pylist()
    return sorted(map(int, found))


def test_a_reader_reads_every_message_once(namesrv, topic):
    assert bodies(reader_of(namesrv)) == list(range(COUNT))


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [({"maxPartitions": "2"}, 2, 2), ({"minPartitions": "9"}, 9, 12), ({"maxRecordsPerPartition": "60"}, 9, 12)],
)
def test_partitions_follow_the_options_and_still_read_all(namesrv, topic, options, least, most):
    reader = reader_of(namesrv, **options)
    assert least <= len(reader.partitions()) <= most
    assert bodies(reader) == list(range(COUNT))


def test_short_ranges_are_pulled_together():
    def sizes(count, rows):
        ranges = [QueueRange(MessageQueue("t", "b", number), 0, rows) for number in range(count)]
        return list(map(len, bundles(ranges)))

    assert sizes(40, 3) == [16, 16, 8]
    assert sizes(4, 500) == [2, 2]
    assert sizes(2, 5000) == [1, 1]


def test_small_arrow_batches_lose_nothing(namesrv, topic):
    reader = reader_of(namesrv, arrowBatchRows="50", pullBatchSize="7")
    assert bodies(reader) == list(range(COUNT))


def test_only_messages_with_the_tag_are_read(namesrv, topic):
    assert bodies(reader_of(namesrv, tagFilter="five")) == list(range(0, COUNT, 5))


def test_only_messages_of_which_the_expression_is_true_are_read(namesrv, topic):
    assert bodies(reader_of(namesrv, sqlFilter="TAGS = 'five'")) == list(range(0, COUNT, 5))


def test_a_range_of_offsets_is_read_to_the_message(namesrv, topic):
    start, end = (json.dumps({TOPIC: {"broker-a": {str(n): at for n in range(4)}}}) for at in (10, 20))
    assert bodies(reader_of(namesrv, startingOffsets=start, endingOffsets=end)) == list(range(40, 80))


def test_assigned_queues_are_read_alone(namesrv, topic):
    options = read_options({"namesrvAddr": namesrv, "assign": '{"spark-orders":{"broker-a":[1]}}'})
    assert bodies(RocketMQReader(options, ["body"])) == list(range(1, COUNT, 4))


def test_what_latest_means_is_fixed_when_the_read_is_planned(namesrv, topic):
    ends = json.dumps({TOPIC: {"broker-a": {str(n): -1 for n in range(4)}}})
    reader = reader_of(namesrv, startingOffsets=ends)
    assert reader.partitions() == []
    assert list(reader.read(None)) == []


def test_a_task_whose_messages_are_gone_says_so(namesrv, topic):
    reader = reader_of(namesrv)
    (part, *_) = reader.partitions()
    part.ranges[0] = type(part.ranges[0])(part.ranges[0].queue, 0, 10_000)
    with pytest.raises(DataLoss, match=r"offsets 125 to 9999 were deleted, 9875 in all.*failOnDataLoss"):
        list(reader.read(part))


def test_a_name_server_that_is_not_there_is_named_at_once():
    with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1\b"):
        reader_of("127.0.0.1:1").partitions()


def test_a_topic_that_is_not_there_is_named(namesrv):
    with pytest.raises(TopicNotFound, match="nowhere"):
        reader_of(namesrv, subscribe="nowhere").partitions()


def test_the_store_time_of_a_message_is_known(namesrv, topic):
    client = client_of(read_options({"namesrvAddr": namesrv, "subscribe": TOPIC}))
    queue = MessageQueue(TOPIC, "broker-a", 0)
    assert client.store_time_at(queue, 0) is not None
    assert client.store_time_at(queue, 10_000) is None


@pytest.mark.spark
class TestInSpark:
    """The same through a session: discovery, schema, pruning by user schema, errors."""

    def load(self, spark, namesrv, **options):
        return spark.read.format("rocketmq").options(namesrvAddr=namesrv, **({"subscribe": TOPIC} | options)).load()

    def test_the_source_is_found_by_its_name_and_reads_all(self, spark, namesrv, topic):
        frame = self.load(spark, namesrv)
        rows = frame.selectExpr("int(string(body)) n", "keys[0] k", "properties['n'] p", "tags").collect()
        assert sorted(row.n for row in rows) == list(range(COUNT))
        assert all((row.k, row.p) == (f"k{row.n}", str(row.n)) for row in rows)

    def test_offsets_are_whole_for_each_queue(self, spark, namesrv, topic):
        found = self.load(spark, namesrv).groupBy("queueId").agg({"queueOffset": "max", "*": "count"}).collect()
        assert sorted(tuple(row) for row in found) == [(n, COUNT // 4 - 1, COUNT // 4) for n in range(4)]

    def test_a_user_schema_chooses_columns(self, spark, namesrv, topic):
        reader = spark.read.format("rocketmq").schema("tags string, queueId int")
        frame = reader.options(namesrvAddr=namesrv, subscribe=TOPIC).load()
        assert frame.columns == ["tags", "queueId"]
        assert frame.where("tags = 'five'").count() == COUNT // 5

    def test_a_mistyped_option_is_named(self, spark, namesrv, topic):
        with pytest.raises(Exception, match="did you mean startingOffsets"):
            self.load(spark, namesrv, startingOfsets="latest").count()

    def test_a_column_that_does_not_exist_is_named(self, spark, namesrv, topic):
        reader = spark.read.format("rocketmq").schema("tag string")
        with pytest.raises(Exception, match="column 'tag' does not exist"):
            reader.options(namesrvAddr=namesrv, subscribe=TOPIC).load().count()


def test_the_connector_is_found_without_loading_pyarrow():
    code = (
        "import sys, pyspark.sql.datasource, pyspark.sql.types; assert 'pyarrow' not in sys.modules; "
        "import pyspark_rocketmq; assert pyspark_rocketmq.DefaultSource.name() == 'rocketmq'; "
        "sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_task_without_a_name_server_fails_after_its_deadline(namesrv, topic):
    (part, *_) = reader_of(namesrv).partitions()
    with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1\b"):
        list(reader_of("127.0.0.1:1", deadlineMs="1").read(part))
