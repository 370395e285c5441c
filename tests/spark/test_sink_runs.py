"""Rows on their way into runs: which queue, in which order, and when a run is closed."""

import pytest

pytest.importorskip("pyarrow")

from pyromq.client.queue_choice import queue_for_key
from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.record import decode_batch
from pyromq.spark.sink_columns import Row
from pyromq.spark.sink_runs import OpenRuns

QUEUES = [MessageQueue("orders", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]


class Sent:
    """Runs as they were sent."""

    def __init__(self, run_bytes=1000, queues=QUEUES):
        self.runs = []
        self.open = OpenRuns(lambda topic: queues, self._send, run_bytes=run_bytes)

    def _send(self, queue, body, messages):
        bodies = [member.body for member in decode_batch(body)]
        assert len(bodies) == messages
        self.runs.append((queue, bodies))

    def of(self, queue):
        return [body for where, bodies in self.runs if where == queue for body in bodies]


def row(body, *, key=None, queue_id=None, broker=None):
    return Row("orders", body, b"", 0, key, broker, queue_id)


def test_rows_without_a_wish_fill_runs_in_turns():
    sent = Sent()
    for number in range(100):
        sent.open.add(row(b"%03d" % number + b"x" * 75))  # ten a run
    sent.open.flush()
    assert [len(bodies) for _, bodies in sent.runs] == [10] * 10
    assert {queue for queue, _ in sent.runs} == set(QUEUES)


def test_rows_of_a_key_keep_their_order_in_its_queue():
    sent = Sent()
    for number in range(300):
        sent.open.add(row(b"%d" % number, key=f"k{number % 7}"))
        sent.open.add(row(b"free"))
    sent.open.flush()
    for key in range(7):
        wanted = [b"%d" % number for number in range(300) if number % 7 == key]
        found = [body for body in sent.of(queue_for_key(QUEUES, f"k{key}")) if body in wanted]
        assert found == wanted


def test_rows_name_their_queue():
    sent = Sent()
    sent.open.add(row(b"1", queue_id=2, broker="broker-b", key="ignored"))
    sent.open.flush()
    assert sent.runs == [(MessageQueue("orders", "broker-b", 2), [b"1"])]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"queue_id": 2}, "queueId 2 of topic orders is not unique: brokers broker-a, broker-b"),
        ({"queue_id": 9, "broker": "broker-a"}, "topic orders has no queue 9 at broker-a"),
        ({"queue_id": 0, "broker": "broker-z"}, "topic orders has no queue 0 at broker-z"),
    ],
)
def test_a_queue_that_is_not_there_is_named(given, text):
    with pytest.raises(UsageError, match=text):
        Sent().open.add(row(b"1", **given))


def test_with_one_broker_the_queue_id_is_enough():
    sent = Sent(queues=QUEUES[:4])
    sent.open.add(row(b"1", queue_id=3))
    sent.open.flush()
    assert sent.runs == [(QUEUES[3], [b"1"])]


def test_many_queues_share_a_bound():
    sent = Sent()
    for number in range(95):
        sent.open.add(row(b"x" * 78, queue_id=number % 4, broker="broker-a" if number % 8 < 4 else "broker-b"))
    assert sum(len(bodies) for _, bodies in sent.runs) >= 95 - 80


def test_a_row_larger_than_a_run_is_a_run():
    sent = Sent()
    sent.open.add(row(b"1", key="k"))
    sent.open.add(row(b"x" * 5000, key="k"))
    sent.open.add(row(b"2", key="k"))
    sent.open.flush()
    assert [bodies for _, bodies in sent.runs] == [[b"1"], [b"x" * 5000], [b"2"]]
