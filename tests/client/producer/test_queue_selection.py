"""Which queue a message goes to."""

import pytest

from pyromq.client.producer.pending_send import QueueSelection, queue_for_key
from pyromq.message import MessageQueue
from pyromq.testing.fake_clock import FakeClock

QUEUES = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(2)]


def brokers(choice, count, **options):
    return [choice.pick(QUEUES, **options).broker_name for _ in range(count)]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [("", 0), ("TagA", 2598919), ("订单", 1129459), ("polygenelubricants", 0)],  # the last one's hash is -2^31
)
def test_a_key_always_goes_to_the_queue_java_chooses(key, hashed):
    assert queue_for_key(QUEUES, key) == QUEUES[hashed % 4]


def test_queues_take_turns():
    choice = QueueSelection(FakeClock())
    picked = [choice.pick(QUEUES) for _ in range(8)]
    assert sorted(picked[:4]) == QUEUES
    assert picked[:4] == picked[4:]


def test_topics_take_turns_each_for_itself():
    choice = QueueSelection(FakeClock())
    other = [MessageQueue("u", "a", number) for number in range(2)]
    picked = []
    for _ in range(4):
        picked.append(choice.pick(QUEUES))
        choice.pick(other)
    assert sorted(picked) == QUEUES


def test_a_retry_goes_to_another_broker():
    choice = QueueSelection(FakeClock())
    assert brokers(choice, 5, last_broker="a") == ["b"] * 5


def test_a_retry_takes_the_same_broker_when_there_is_no_other():
    assert QueueSelection(FakeClock()).pick(QUEUES[:2], last_broker="a").broker_name == "a"


def test_faults_change_nothing_unless_wanted():
    choice = QueueSelection(FakeClock())
    choice.report("a", 0.1, failed=True)
    assert set(brokers(choice, 4)) == {"a", "b"}


@pytest.mark.parametrize(("seconds", "rest"), [(0.549, 0), (0.55, 30), (1.0, 60), (2.0, 120), (3.0, 180), (15.0, 600)])
async def test_a_slow_broker_rests_as_long_as_upstream_lets_it(seconds, rest):
    clock = FakeClock()
    choice = QueueSelection(clock, avoid_slow=True)
    choice.report("a", seconds)
    if rest:
        await clock.advance(rest - 0.001)
        assert set(brokers(choice, 4)) == {"b"}
        await clock.advance(0.002)
    assert set(brokers(choice, 4)) == {"a", "b"}


def test_a_failure_counts_as_thirty_seconds():
    choice = QueueSelection(FakeClock(), avoid_slow=True)
    choice.report("a", 0.001, failed=True)
    assert set(brokers(choice, 4)) == {"b"}


def test_of_faulty_brokers_the_better_half_is_used():
    choice = QueueSelection(FakeClock(), avoid_slow=True)
    choice.report("a", 2.0)
    choice.report("b", 1.0)
    assert set(brokers(choice, 4)) == {"b"}


def test_a_faulty_broker_without_queues_is_forgotten():
    choice = QueueSelection(FakeClock(), avoid_slow=True)
    choice.report("gone", 0.6)
    choice.report("a", 3.0)
    choice.report("b", 3.0)
    choice.pick(QUEUES)  # meets `gone`, and forgets it
    assert set(brokers(choice, 4)) <= {"a", "b"}
