"""The messages in flight, compared with a simple model: one entry a message."""

import gc
import sys
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyromq.broker.popping.in_flight import InFlight, Pop
from pyromq.remoting.receipt_handle import bits_of, offsets_in

QUEUE = ("g", "orders", 0)


@dataclass
class Lease:
    start: int
    pop_ms: int
    due_ms: int


@dataclass
class Model:
    """What a group has done with each message of one queue."""

    next_offset: int = 100
    leases: dict[int, Lease] = field(default_factory=dict)
    visible: set[int] = field(default_factory=set)  # of an orderly group: handed out, and visible again
    tries: dict[int, int] = field(default_factory=dict)

    @property
    def unfinished(self):
        return sorted(set(self.leases) | self.visible)

    def settle(self):
        """Let an orderly group begin at the first unfinished message, once nothing is invisible."""
        if not self.leases and self.visible:
            for offset in self.visible:
                self.tries[offset] = self.tries.get(offset, 0) + 1
            self.next_offset = min(self.visible)
            self.visible = set()


class _InFlightMachine(RuleBasedStateMachine):
    """Random pops, acknowledgements, changes, and times that are over."""

    is_orderly = False

    @initialize()
    def begin(self):
        self.now = 1_000
        self.model = Model()
        self.table = InFlight()
        self.queue = self.table.add(*QUEUE, 100)

    def pop_of(self, offset):
        lease = self.model.leases[offset]
        pop = self.queue.lease(lease.start, lease.pop_ms, offset)
        assert pop is not None
        return pop

    @precondition(lambda self: not (self.is_orderly and self.model.leases))
    @rule(
        distances=st.lists(st.integers(0, 70), min_size=1, max_size=40, unique=True),
        more=st.integers(1, 5),
        invisible_ms=st.integers(0, 30),
    )
    def pop(self, distances, more, invisible_ms):
        offsets = [self.model.next_offset + distance for distance in sorted(distances)]
        self.now += 1
        due_ms, behind = self.now + invisible_ms, offsets[-1] + more
        times = {"pop_ms": self.now, "due_ms": due_ms}
        self.table.hand_out(
            Pop(self.queue, offsets[0], bits_of(offsets, offsets[0]), **times, is_orderly=self.is_orderly), behind
        )
        for offset in offsets:
            self.model.leases[offset] = Lease(offsets[0], self.now, due_ms)
        self.model.next_offset = behind

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data())
    def acknowledge(self, data):
        offset = data.draw(st.sampled_from(sorted(self.model.leases)))
        pop = self.pop_of(offset)
        self.table.finish(pop, 1 << offset - pop.start)
        lease = self.model.leases.pop(offset)
        self.model.settle()
        assert self.queue.lease(lease.start, lease.pop_ms, offset) is None

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), invisible_ms=st.integers(0, 30))
    def change(self, data, invisible_ms):
        offset = data.draw(st.sampled_from(sorted(self.model.leases)))
        old = self.model.leases[offset]
        moved = self.table.move(self.pop_of(offset), offset, pop_ms=self.now, due_ms=self.now + invisible_ms)
        assert moved.pop_ms > old.pop_ms
        self.model.leases[offset] = Lease(offset, moved.pop_ms, self.now + invisible_ms)
        assert self.queue.lease(old.start, old.pop_ms, offset) is None

    @rule(ms=st.integers(0, 40))
    def wait(self, ms):
        self.now += ms
        due = {offset for offset, lease in self.model.leases.items() if lease.due_ms <= self.now}
        seen = set()
        while (pop := self.table.first_due(self.now)) is not None:
            seen.update(pop.leased_offsets())
            if self.is_orderly:
                self.table.release(pop)
            else:
                self.table.finish(pop, pop.leased)
        assert seen == due
        for offset in due:
            del self.model.leases[offset]
        if self.is_orderly:
            self.model.visible |= due
            self.model.settle()

    @rule(offset=st.integers(0, 300))
    def reset(self, offset):
        self.table.reset(self.queue, offset)
        self.model = Model(offset)

    @invariant()
    def the_group_is_at_the_least_offset_in_flight(self):
        model = self.model
        assert self.queue.committed == min(model.unfinished, default=model.next_offset)

    @invariant()
    def the_rest_is_as_in_the_model(self):
        model, queue = self.model, self.queue
        assert queue.next_offset == model.next_offset
        assert self.table.count == queue.in_flight == len(model.leases)
        assert self.table.pops.used == self.table.pops.of("g") == len(queue.pops) + len(queue.moved)
        assert sorted(offset for pop in queue.leases() for offset in pop.leased_offsets()) == sorted(model.leases)
        assert self.table.next_due_ms() == min((lease.due_ms for lease in model.leases.values()), default=None)
        start = max(0, min(model.unfinished, default=model.next_offset) - 3)
        behind = set(range(model.next_offset, model.next_offset + 3))
        for begin in (start, (start + model.next_offset) // 2):
            unfinished = queue.unfinished_in((1 << model.next_offset + 3 - begin) - 1, begin)
            assert offsets_in(unfinished, begin) == sorted(
                each for each in {*model.unfinished, *behind} if each >= begin
            )
        assert {offset: n for offset, n in queue.tries.items() if offset in model.unfinished} == {
            offset: n for offset, n in model.tries.items() if offset in model.unfinished
        }


class _OrderlyMachine(_InFlightMachine):
    is_orderly = True


TestInFlight = _InFlightMachine.TestCase
TestInFlight.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestOrderly = _OrderlyMachine.TestCase
TestOrderly.settings = TestInFlight.settings


def test_one_slow_message_keeps_no_finished_pops():
    table = InFlight()
    queue = table.add(*QUEUE, 0)
    table.hand_out(Pop(queue, 0, 1, pop_ms=1, due_ms=10_000), 1)
    for offset in range(1, 1000):
        pop = Pop(queue, offset, 1, pop_ms=offset, due_ms=offset + 5_000)
        table.hand_out(pop, offset + 1)
        table.finish(pop, 1)
    assert queue.committed == 0
    assert len(queue.order) < 100
    assert len(queue.pops) == 1


def test_pops_that_are_due_together_may_be_finished_or_prolonged_before_their_turn():
    table = InFlight()
    queue = table.add(*QUEUE, 0)
    pops = [Pop(queue, offset, 1, pop_ms=1, due_ms=10) for offset in range(4)]
    for pop in pops:
        table.hand_out(pop, pop.start + 1)
    assert table.first_due(9) is None
    assert table.first_due(10) is pops[0]
    table.finish(pops[1], 1)
    table.prolong(pops[0], 20)
    assert table.first_due(10) is pops[2]
    table.prolong(pops[2], 15)
    table.finish(pops[3], 1)
    assert table.first_due(10) is None
    assert table.first_due(20) is pops[2]


def test_many_pops_that_are_due_together_are_found_as_quickly_as_few():
    """After a restart of the broker all pops that are renewed are due together."""
    table = InFlight()
    queue = table.add(*QUEUE, 0)
    for offset in range(2_000):
        table.hand_out(Pop(queue, offset, 1, pop_ms=1, due_ms=10), offset + 1)
    visited = 0

    class Counted(dict):
        def __iter__(self):
            nonlocal visited
            visited += len(self)
            return super().__iter__()

    table._by_due[10] = Counted(table._by_due[10])
    while (pop := table.first_due(10)) is not None:
        table.finish(pop, 1)
    assert (table.count, visited) == (0, 2_000)


def test_the_garbage_collector_visits_no_pop():
    queue = InFlight().add(*QUEUE, 0)
    assert not gc.is_tracked(Pop(queue, 0, 1, pop_ms=1, due_ms=2))


def test_a_cleared_table_frees_its_pops():
    table = InFlight()
    queue = table.add(*QUEUE, 0)
    pop = Pop(queue, 0, 0b11, pop_ms=1, due_ms=5)
    table.hand_out(pop, 2)
    table.move(pop, 1, pop_ms=2, due_ms=6)
    table.clear()
    assert sys.getrefcount(pop) == 2
    assert (table.count, table.pops.used, table.next_due_ms(), list(table)) == (0, 0, None, [])


def test_a_dropped_queue_has_nothing_in_flight():
    table = InFlight()
    queue = table.add(*QUEUE, 0)
    table.hand_out(Pop(queue, 0, 0b11, pop_ms=1, due_ms=5), 2)
    table.drop(queue)
    assert (table.count, table.next_due_ms(), table.find(*QUEUE), list(table)) == (0, None, None, [])
