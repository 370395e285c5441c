"""The messages in flight: handed out by pops, neither acknowledged nor visible again. No I/O and no clock here.

No message is lost, because a group's committed offset never exceeds the least offset in flight.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from pyromq.quota import Quota
from pyromq.remoting.receipt_handle import bits_from, offsets_in

_STALE_DUES = 1_000  # limit of outdated entries in the heap, beyond the number of valid entries
_FINISHED_POPS = 64  # limit of finished pops that a queue keeps, beyond the number of its unfinished pops


class Pop(msgspec.Struct, gc=False, eq=False):
    """Messages of one queue that were handed out together, or one message whose invisible time was changed.

    `parent` is the pop that handed out the changed message.

    Bit n of `leased` and `unfinished` stands for offset `start` + n. Leased messages are invisible until `due_ms`.
    The garbage collector skips pops (`gc=False`): a million of them would block the event loop for half a second.
    """

    queue: PoppedQueue
    start: int
    leased: int
    pop_ms: int
    due_ms: int
    is_orderly: bool = False
    client_id: str | None = None  # the member whose connection prolongs the time; None: the time is fixed
    parent: Pop | None = None
    unfinished: int = 0  # set to `leased` when the pop is made

    def __post_init__(self) -> None:
        self.unfinished = self.leased

    def leased_offsets(self) -> list[int]:
        """Return the offsets that are invisible until `due_ms`, in ascending order."""
        return offsets_in(self.leased, self.start)


@dataclass(slots=True, eq=False, repr=False)
class PoppedQueue:
    """A group's state in a queue. `number` stands for the queue in the journal's records."""

    group: str
    topic: str
    queue_id: int
    number: int
    next_offset: int  # first offset that was never handed out
    in_flight: int = 0  # messages that are invisible
    pops: dict[int, Pop] = field(default_factory=dict)  # unfinished pops by first offset
    moved: dict[int, Pop] = field(default_factory=dict)  # messages whose time was changed, by offset
    order: deque[Pop] = field(default_factory=deque)  # the pops, in ascending order; some are finished
    earliest_ms: int = 0  # least pop time of the next pop: new handles must differ from handles before a reset
    attempt_id: str | None = None  # attempt id of the last orderly pop
    tries: dict[int, int] = field(default_factory=dict)  # offset -> how often an orderly pop handed it out before

    @property
    def committed(self) -> int:
        """The least offset in flight, or the next offset to hand out if none is in flight."""
        order = self.order
        while order:
            if unfinished := order[0].unfinished:
                return order[0].start + (unfinished & -unfinished).bit_length() - 1
            order.popleft()
        return self.next_offset

    def leases(self) -> Iterator[Pop]:
        """Yield the pops that have invisible messages."""
        for pops in (self.pops, self.moved):
            yield from (pop for pop in pops.values() if pop.leased)

    def pop_at(self, start: int, pop_ms: int) -> Pop | None:
        """Return the unfinished pop with this first offset and this pop time."""
        moved = self.moved.get(start)
        pop = moved if moved is not None and moved.pop_ms == pop_ms else self.pops.get(start)
        return pop if pop is not None and pop.pop_ms == pop_ms else None

    def lease(self, start: int, pop_ms: int, offset: int) -> Pop | None:
        """Return the pop that holds a message by a receipt handle's values; None if the handle is no longer valid."""
        moved = self.moved.get(offset)
        if moved is not None:
            return moved if moved.pop_ms == pop_ms else None
        pop = self.pops.get(start)
        is_held = pop is not None and pop.pop_ms == pop_ms and offset >= start and pop.leased >> offset - start & 1
        return pop if is_held else None

    def unfinished_in(self, bits: int, start: int) -> int:
        """Return the messages among `bits` that are not acknowledged yet, by any receipt handle."""
        unfinished = bits_from(bits, start, self.next_offset)
        end = start + bits.bit_length()
        first = bisect_right(self.order, start, key=lambda pop: pop.start) - 1
        for pop in islice(self.order, max(0, first), None):
            if pop.start >= end:
                break
            unfinished |= shifted(pop.unfinished, pop.start - start)
        return unfinished & bits


class InFlight:
    """The messages in flight of all groups and queues, and when they are due.

    The quota `pops` limits the unfinished pops of all groups to `max_pops`. A group may use half of the free pops. The
    caller checks the quota.
    """

    def __init__(self, max_pops: int = sys.maxsize) -> None:
        self.pops: Quota[str] = Quota("maxPopsInFlight", max_pops, shares=2, is_hard=True)
        self._queues: dict[tuple[str, str], dict[int, PoppedQueue]] = {}  # group, topic -> queue id -> queue
        self._by_number: dict[int, PoppedQueue] = {}
        self._last_number = 0
        # Pops by due time. A dictionary for one pop would take as much memory as the pop, so one pop has none.
        self._by_due: dict[int, Pop | dict[Pop, None]] = {}
        self._dues: list[int] = []  # heap of the keys of `_by_due`, also of removed keys
        self._due_now: deque[Pop] = deque()  # pops that were due together; some are finished or due later
        self.count = 0  # messages that are invisible

    def __iter__(self) -> Iterator[PoppedQueue]:
        return iter(list(self._by_number.values()))

    def queues(self, group: str, topic: str) -> dict[int, PoppedQueue]:
        """Return the queues of a topic that a group has popped, by queue id."""
        return self._queues.get((group, topic), {})

    def count_of(self, group: str, topic: str) -> int:
        """Return how many messages of a topic are invisible for a group."""
        return sum(queue.in_flight for queue in self.queues(group, topic).values())

    def find(self, group: str, topic: str, queue_id: int) -> PoppedQueue | None:
        return self.queues(group, topic).get(queue_id)

    def numbered(self, number: int) -> PoppedQueue | None:
        return self._by_number.get(number)

    def add(self, group: str, topic: str, queue_id: int, next_offset: int, *, number: int | None = None) -> PoppedQueue:
        """Add and return the state of a queue that the group pops for the first time, from `next_offset` on."""
        self._last_number = max(self._last_number + 1, number or 0)
        queue = PoppedQueue(group, topic, queue_id, number=number or self._last_number, next_offset=next_offset)
        self._queues.setdefault((group, topic), {})[queue_id] = self._by_number[queue.number] = queue
        return queue

    def drop(self, queue: PoppedQueue) -> None:
        """Remove a queue and its messages in flight."""
        self.reset(queue, queue.next_offset)
        del self._by_number[queue.number]
        queues = self._queues[queue.group, queue.topic]
        del queues[queue.queue_id]
        if not queues:
            del self._queues[queue.group, queue.topic]

    def reset(self, queue: PoppedQueue, next_offset: int) -> None:
        """Remove a queue's messages in flight. The next pop begins at `next_offset`; existing handles expire."""
        for pop in queue.leases():
            self._unschedule(pop)
            pop.leased = 0  # a copy that is flushed later must not finish the pop
        for pop in (*queue.order, *queue.moved.values()):
            queue.earliest_ms = max(queue.earliest_ms, pop.pop_ms + 1)
        self.count -= queue.in_flight
        self.pops.release(queue.group, len(queue.pops) + len(queue.moved))
        queue.in_flight = 0
        queue.pops.clear()
        queue.moved.clear()
        queue.order.clear()
        queue.tries = {}
        queue.next_offset = next_offset

    def hand_out(self, pop: Pop, next_offset: int) -> None:
        """Add a pop. The messages before `next_offset` that the pop does not have are skipped."""
        queue, count = pop.queue, pop.leased.bit_count()
        queue.pops[pop.start] = pop
        queue.order.append(pop)
        if len(queue.order) > 2 * len(queue.pops) + _FINISHED_POPS:
            queue.order = deque(queue.pops.values())
        queue.next_offset = next_offset
        queue.in_flight += count
        self.count += count
        self.pops.add(queue.group)
        self._schedule(pop)

    def finish(self, pop: Pop, bits: int) -> None:
        """End the delivery of messages of a pop, because they are acknowledged, copied, or deleted."""
        bits &= pop.leased
        queue, count = pop.queue, bits.bit_count()
        pop.leased &= ~bits
        pop.unfinished &= ~bits
        queue.in_flight -= count
        self.count -= count
        if not pop.leased:
            self._unschedule(pop)
        if pop.parent is not None:
            self._drop_moved(pop)
            pop.parent.unfinished &= ~(1 << pop.start - pop.parent.start)
            pop = pop.parent
        if not pop.unfinished and queue.pops.pop(pop.start, None) is not None:
            self.pops.release(queue.group)
        if pop.is_orderly and not queue.in_flight and queue.committed < queue.next_offset:
            self._rewind(queue)

    def move(self, pop: Pop, offset: int, *, pop_ms: int, due_ms: int) -> Pop:
        """Change when a message becomes visible. Return the message's new pop, whose `pop_ms` is later."""
        queue = pop.queue
        self._take(pop, 1 << offset - pop.start)
        moved = Pop(
            *(queue, offset, 1),
            pop_ms=max(pop_ms, pop.pop_ms + 1),  # the new handle must differ from the previous one
            due_ms=due_ms,
            is_orderly=pop.is_orderly,
            client_id=pop.client_id,
            parent=pop.parent or pop,
        )
        queue.moved[offset] = moved
        if pop.parent is None:
            self.pops.add(queue.group)
        self._schedule(moved)
        return moved

    def _drop_moved(self, pop: Pop) -> None:
        del pop.queue.moved[pop.start]
        self.pops.release(pop.queue.group)

    def _take(self, pop: Pop, bits: int) -> None:
        pop.leased &= ~bits
        if not pop.leased:
            self._unschedule(pop)

    def prolong(self, pop: Pop, due_ms: int) -> None:
        """Change when a pop is due. Its receipt handles are still valid."""
        self._unschedule(pop)
        pop.due_ms = due_ms
        self._schedule(pop)

    def release(self, pop: Pop) -> bool:
        """Make the messages of an orderly pop visible. Return True if the queue has no invisible messages left.

        Then the queue can be popped again, from the first unfinished message.
        """
        queue = pop.queue
        count = pop.leased.bit_count()
        queue.in_flight -= count
        self.count -= count
        self._take(pop, pop.leased)
        if pop.parent is not None:
            self._drop_moved(pop)
        if queue.in_flight:
            return False
        self._rewind(queue)
        return True

    def _rewind(self, queue: PoppedQueue) -> None:
        """Let the next pop begin at the first unfinished message."""
        tries = {offset: n for offset, n in queue.tries.items() if offset >= queue.committed}
        for each in queue.order:
            for offset in offsets_in(each.unfinished, each.start):
                tries[offset] = tries.get(offset, 0) + 1
        self.reset(queue, queue.committed)
        queue.tries = tries

    def clear(self) -> None:
        """Remove all queues and pops. They refer to each other, so the memory would not be free otherwise."""
        for queue in self._by_number.values():
            self.pops.end(queue.group)
            for pop in queue.leases():
                pop.leased = 0  # a copy that is flushed later must not finish the pop
            queue.pops.clear()
            queue.moved.clear()
            queue.order.clear()
        self._queues.clear()
        self._by_number.clear()
        self._by_due.clear()
        self._dues.clear()
        self._due_now.clear()
        self.count = 0

    # -- when they are due

    def first_due(self, now_ms: int) -> Pop | None:
        """Return a pop that is due; None if none is."""
        while True:
            while self._due_now:
                pop = self._due_now[0]
                if pop.due_ms <= now_ms and self._is_scheduled(pop):
                    return pop
                self._due_now.popleft()
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > now_ms:
                return None
            pops = self._by_due[due_ms]
            self._due_now.extend(pops if isinstance(pops, dict) else (pops,))

    def next_due_ms(self) -> int | None:
        """Return when the next pop is due, in ms since 1970; None if nothing is in flight."""
        while self._dues:
            if self._dues[0] in self._by_due:
                return self._dues[0]
            heapq.heappop(self._dues)
        return None

    def _schedule(self, pop: Pop) -> None:
        pops = self._by_due.get(pop.due_ms)
        if isinstance(pops, dict):
            pops[pop] = None
        elif pops is not None:
            self._by_due[pop.due_ms] = {pops: None, pop: None}
        else:
            self._by_due[pop.due_ms] = pop
            heapq.heappush(self._dues, pop.due_ms)
            if len(self._dues) > 2 * len(self._by_due) + _STALE_DUES:
                self._dues = sorted(self._by_due)

    def _unschedule(self, pop: Pop) -> None:
        pops = self._by_due.get(pop.due_ms)
        if isinstance(pops, dict):
            pops.pop(pop, None)
        if pops is pop or pops == {}:
            del self._by_due[pop.due_ms]

    def _is_scheduled(self, pop: Pop) -> bool:
        pops = self._by_due.get(pop.due_ms)
        return pop in pops if isinstance(pops, dict) else pops is pop


def shifted(bits: int, places: int) -> int:
    return bits << places if places >= 0 else bits >> -places
