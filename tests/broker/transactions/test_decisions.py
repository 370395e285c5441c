"""What a broker remembers of decisions, and how much memory that takes."""

import tracemalloc

from pyromq.broker.transactions.decisions import REMEMBERED, Decisions
from pyromq.broker.transactions.half_messages import HalfIdentity
from pyromq.message import SysFlag

COMMIT, ROLLBACK = SysFlag.COMMIT, SysFlag.ROLLBACK


def identity(number):
    return HalfIdentity(f"7F0000010000{number:020X}", 1_700_000_000_000 + number, b"\x7f\0\0\1\0\0\0\1", number)


def test_a_decision_is_found_by_all_that_identifies_the_message():
    decisions = Decisions()
    decisions.note(identity(1), COMMIT)
    decisions.note(4711, ROLLBACK)  # the log offset of a message without unique key
    assert decisions.find(identity(1)) == COMMIT
    assert decisions.find(4711) == ROLLBACK
    for other in (identity(2), identity(1)._replace(born_ms=0), identity(1)._replace(body_crc=0), 4712):
        assert decisions.find(other) is None


def test_the_latest_decisions_are_remembered_and_older_ones_forgotten():
    decisions = Decisions()
    for number in range(10 * REMEMBERED):
        decisions.note(identity(number), COMMIT if number % 2 else ROLLBACK)
    for number in range(9 * REMEMBERED, 10 * REMEMBERED):
        assert decisions.find(identity(number)) == (COMMIT if number % 2 else ROLLBACK)
    assert decisions.find(identity(8 * REMEMBERED - 1)) is None


def test_remembered_decisions_take_little_memory():
    tracemalloc.start()
    try:
        decisions = Decisions()
        for number in range(10 * REMEMBERED):
            decisions.note(identity(number), COMMIT)
        assert tracemalloc.get_traced_memory()[1] < 900_000  # CPython without the lock takes 810,000
    finally:
        tracemalloc.stop()
