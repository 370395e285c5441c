"""What is refused is counted every time, and told once a minute and connection."""

import pytest

from pyromq.remoting.rejection_log import MAX_LINES, QUIET_SECONDS, RejectionLog
from pyromq.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def refusals(clock):
    return RejectionLog(clock)


def test_each_is_counted_by_its_reason(refusals):
    for address in ("10.0.0.1:1", "10.0.0.1:1", "10.0.0.2:1"):
        refusals.note("maxRequestBytes", address, "%s sends too much", address)
    refusals.note("maxConnections", "10.0.0.3:1", "no more")
    assert refusals.counts == {"maxRequestBytes": 3, "maxConnections": 1}


async def test_a_connection_gets_one_line_a_minute(refusals, clock, caplog):
    for _ in range(3):
        for address in ("10.0.0.1:1", "10.0.0.1:2"):
            refusals.note("maxRequestBytes", address, "%s sends too much", address)
    assert caplog.messages == ["10.0.0.1:1 sends too much", "10.0.0.1:2 sends too much"]
    await clock.advance(QUIET_SECONDS - 0.001)
    refusals.note("maxRequestBytes", "10.0.0.1:1", "quiet")
    assert len(caplog.messages) == 2


async def test_the_next_line_says_how_many_were_left_out(refusals, clock, caplog):
    for _ in range(4):
        refusals.note("maxRequestBytes", "10.0.0.1:1", "first")
    await clock.advance(QUIET_SECONDS)
    refusals.note("maxRequestBytes", "10.0.0.1:1", "second")
    assert caplog.messages == ["first", "second (3 such lines were left out before this one)"]


async def test_who_connects_again_and_again_does_not_fill_the_log(refusals, clock, caplog):
    for port in range(10 * MAX_LINES):
        refusals.note("maxRequestBytes", f"10.0.0.1:{port}", "too much")
    assert len(caplog.messages) == MAX_LINES
    await clock.advance(QUIET_SECONDS)
    refusals.note("maxRequestBytes", "10.0.0.1:1", "too much")
    assert caplog.messages[-1] == f"too much ({9 * MAX_LINES} such lines were left out before this one)"
