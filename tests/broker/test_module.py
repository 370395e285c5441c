"""Parts of a broker: in which order they are entered, saved and left, and what a failing one costs the others."""

import pytest

from pyromq.broker import broker as broker_module
from pyromq.broker.broker import Broker
from pyromq.broker.modules import BrokerModule, periodic
from pyromq.errors import StoreNotWritable


class Noting:
    """Makes parts that note when they are called for what."""

    def __init__(self):
        self.called = []

    def part(self, name, **more):
        def note(what):
            return lambda: self.called.append((what, name))

        def awaited(what):
            async def call():
                self.called.append((what, name))

            return call

        calls = {what: note(what) for what in ("load", "repair", "unsaved", "close", "persist")}
        return BrokerModule(**calls | {what: awaited(what) for what in ("start", "stop")} | more)

    def order(self, what):
        return [name for each, name in self.called if each == what]


@pytest.fixture
def noting():
    return Noting()


@pytest.fixture
def broker_of(config, clock, monkeypatch):
    """Make a broker with these parts behind its own."""

    def make(*parts):
        own = broker_module._modules
        monkeypatch.setattr(broker_module, "_modules", lambda state: [*own(state), *parts])
        return Broker(config, clock)

    return make


async def test_parts_are_entered_forwards_and_left_backwards(noting, broker_of, config, clock):
    async with broker_of(noting.part("a"), noting.part("b")):
        assert [noting.order(what) for what in ("load", "repair", "start")] == [["a", "b"]] * 3
        await clock.advance(0)
        await clock.advance(config.offsets_interval_ms / 1000)
        assert noting.order("unsaved") == ["b", "a"]
    assert noting.called[-6:] == [(what, name) for what in ("stop", "close", "persist") for name in ("b", "a")]


async def test_a_part_that_cannot_load_keeps_the_broker_from_starting_and_all_are_left(noting, broker_of):
    def fail():
        raise StoreNotWritable("the disk is full")

    with pytest.raises(StoreNotWritable, match="the disk is full"):
        async with broker_of(noting.part("a"), noting.part("b", load=fail)):
            pass
    assert noting.order("start") == []
    assert noting.order("persist") == ["b", "a"]


async def test_steps_run_as_they_ask_for_and_periodic_ones_not_at_once(broker_of, clock):
    ran = []
    asking = [0.5, 0.5, None]
    steps = [periodic(2, lambda: ran.append("periodic"))]

    def ask():
        ran.append("asking")
        return asking.pop(0)

    async with broker_of(BrokerModule(steps=[*steps, broker_module.Step(ask)])):
        await clock.advance(0)
        assert ran == ["asking"]
        await clock.advance(4)
    assert ran == ["asking"] * 3 + ["periodic"] * 2
