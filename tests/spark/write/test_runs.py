"""Rows on their way into runs: which queue, in which order, and when a run is closed."""

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from pyromq.client.producer.pending_send import queue_for_key
from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.record import decode_batch
from pyromq.spark.given_options import sink_options
from pyromq.spark.write.message_reader import MessageReader
from pyromq.spark.write.open_runs import OpenRuns

TYPES = {"body": pa.binary(), "queueId": pa.int32(), "brokerName": pa.string(), "shardingKey": pa.string()}
OVERHEAD = 22 + len("UNIQ_KEY=i")  # bytes of a member beside its body
QUEUES = [MessageQueue("orders", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]


class Sent:
    """Runs as they were sent."""

    def __init__(self, run_bytes=1000, queues=QUEUES):
        self.runs = []
        self.open = OpenRuns(lambda topic, brokers: queues, self._send, run_bytes=run_bytes)

    def _send(self, queue, body, messages):
        bodies = [member.body for member in decode_batch(body)]
        assert len(bodies) == messages
        self.runs.append((queue, bodies))

    def of(self, queue):
        return [body for where, bodies in self.runs if where == queue for body in bodies]

    def add(self, *rows, topic="orders"):
        """Add rows: each a body and what else is known of it, by column."""
        names = {"body", *(name for row in rows for name in row)}
        columns = {name: pa.array([row.get(name) for row in rows], TYPES[name]) for name in names}
        reader = MessageReader(sink_options({"topic": "orders"}), lambda count: pa.array(["i"] * count), str)
        self.open.add(topic, reader.read(pa.RecordBatch.from_pydict(columns)))


def row(body, **wishes):
    return {"body": body} | wishes


def test_rows_without_a_wish_fill_runs_in_turns():
    sent = Sent()
    for start in range(0, 100, 20):
        sent.add(*(row(b"%03d" % number + b"x" * (97 - OVERHEAD)) for number in range(start, start + 20)))
    sent.open.flush()
    assert [len(bodies) for _, bodies in sent.runs] == [10] * 10
    assert {queue for queue, _ in sent.runs} == set(QUEUES)
    assert [int(body[:3]) for _, bodies in sent.runs for body in bodies] == list(range(100))


def test_rows_of_a_key_keep_their_order_in_its_queue():
    sent = Sent()
    for start in range(0, 300, 50):
        rows = [row(b"%d" % number, shardingKey=f"k{number % 7}") for number in range(start, start + 50)]
        sent.add(*(each for one in rows for each in (one, row(b"free"))))
    sent.open.flush()
    for key in range(7):
        wanted = [b"%d" % number for number in range(300) if number % 7 == key]
        found = [body for body in sent.of(queue_for_key(QUEUES, f"k{key}")) if body in wanted]
        assert found == wanted
    assert sum(len(bodies) for _, bodies in sent.runs) == 600


def test_rows_name_their_queue():
    sent = Sent()
    sent.add(row(b"1", queueId=2, brokerName="broker-b", shardingKey="ignored"))
    sent.open.flush()
    assert sent.runs == [(MessageQueue("orders", "broker-b", 2), [b"1"])]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"queueId": 2}, "queueId 2 of topic orders is not unique: brokers broker-a, broker-b"),
        ({"queueId": 9, "brokerName": "broker-a"}, "topic orders has no queue 9 at broker-a"),
        ({"queueId": 0, "brokerName": "broker-z"}, "topic orders has no queue 0 at broker-z"),
    ],
)
def test_a_queue_that_is_not_there_is_named(given, text):
    with pytest.raises(UsageError, match=text):
        Sent().add(row(b"1", **given))


def test_with_one_broker_the_queue_id_is_enough():
    sent = Sent(queues=QUEUES[:4])
    sent.add(row(b"1", queueId=3), row(b"2", queueId=None), row(b"3", queueId=3))
    sent.open.flush()
    assert sent.of(QUEUES[3])[0] == b"1"
    assert sorted(body for _, bodies in sent.runs for body in bodies) == [b"1", b"2", b"3"]


def test_many_queues_share_a_bound():
    sent = Sent()
    for number in range(95):
        sent.add(row(b"x" * 78, queueId=number % 4, brokerName="broker-a" if number % 8 < 4 else "broker-b"))
    assert sum(len(bodies) for _, bodies in sent.runs) >= 95 - 80


def test_a_row_larger_than_a_run_is_a_run():
    sent = Sent()
    sent.add(*(row(body, shardingKey="k") for body in (b"1", b"x" * 5000, b"2")))
    sent.open.flush()
    assert [bodies for _, bodies in sent.runs] == [[b"1"], [b"x" * 5000], [b"2"]]
