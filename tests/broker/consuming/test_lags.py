"""When messages were stored: how many records are read from the disk for that."""

import pytest
from tests.slow_work import steps_of

from pyromq.broker.consuming import lags
from pyromq.broker.consuming.lags import StoreTimes
from pyromq.slow_work import run_blocking
from pyromq.store.log import commit_log


@pytest.fixture
async def cold(broker, orders, monkeypatch):
    """A store with a message in each of four queues, none of which counts as being in memory."""
    for queue_id in range(4):
        await orders.send("orders", queue_id=queue_id)
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    monkeypatch.setattr(type(broker.store.disk), "is_resident", lambda *_: False)
    return broker.store


def test_what_two_read_at_once_counts_for_both(cold, monkeypatch):
    monkeypatch.setattr(lags, "MAX_COLD", 3)
    times = StoreTimes(cold)
    founds = [{}, {}, {}]
    first, second = (steps_of(times.read("orders", {number: 0}, founds[number])) for number in range(2))
    next(first)
    for _ in second:
        next(first, None)
    list(first)
    run_blocking(times.read("orders", {2: 0, 3: 0}, founds[2]))
    assert [len(found) for found in founds] == [1, 1, 1]
