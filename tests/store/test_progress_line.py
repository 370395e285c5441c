"""A long start says how long it will take, a short one nothing."""

from __future__ import annotations

import pytest
from tests.store.making import StoppedClock

from pyromq.store.recovery import RecoveryProgress


def walk(clock: StoppedClock, seconds: int) -> None:
    """Pass over 4 GiB of records in so many seconds, the second half of them in no time."""
    line = RecoveryProgress(clock, 0, 4 << 30)
    for record in range(1 << 17):
        clock.ms = int(1_700_000_000_000 + 1000 * seconds * record / (1 << 17))
        line.count(record << 15)


def test_a_short_walk_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    walk(StoppedClock(), 1)
    assert caplog.messages == []


def test_a_long_walk_says_how_far_it_is_and_how_long_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    walk(StoppedClock(), 40)
    assert len(caplog.messages) == 8
    assert caplog.messages[4] == "reading the log: 2.2 of 4.0 GiB, 3276 messages a second, about 17 s left"
