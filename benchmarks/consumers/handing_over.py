"""A third member joins two, leaves, joins again and is killed: how long queues stood still, and what came twice."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf

from consumers.feeding import QUEUES, Feeding
from consumers.members import SAY_SECONDS, Member

SHARE = QUEUES // 3
SETTLE_SECONDS = 1.5  # after the last queue has moved, as far as can be seen
CHECK_SECONDS = 0.02

StartMember = Callable[[], AbstractContextManager[Member]]
Event = tuple[str, float]  # what happened, and when


@dataclass(frozen=True, slots=True)
class Seen:
    """A call of a listener. `member` counts the members from 0."""

    at: float
    member: int
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class Handing:
    """What came of one event: the time until each queue's first message at its new owner, and messages seen twice."""

    seconds: float
    repeats: int


class Watching:
    """All that the members say, put together."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members

    def seen(self, since: float = 0.0) -> list[Seen]:
        """Return the calls from then on, in order of time."""
        return sorted(
            (
                Seen(line.at, number, int(line.words[0]), int(line.words[1]))
                for number, member in enumerate(self.members)
                for line in list(member.lines)
                if line.kind == "message" and line.at >= since
            ),
            key=lambda seen: seen.at,
        )

    def wait(self, is_there: Callable[[list[Seen]], bool], since: float, what: str) -> None:
        deadline = time.monotonic() + SAY_SECONDS
        while not is_there(self.seen(since)):
            if time.monotonic() > deadline:
                raise SystemExit(f"{what}: not within {SAY_SECONDS:g} s")
            time.sleep(CHECK_SECONDS)


def hand_over(start: StartMember, feeding: Feeding) -> tuple[dict[str, list[Handing]], int]:
    """Return the outcomes of the events by their names, and how many messages were lost in all."""
    events: list[Event] = []
    with start() as first, start() as second:
        watching = Watching([first, second])
        watching.wait(lambda seen: sorted(_owned(seen).values()) == [SHARE + 1, SHARE + 2], 0.0, "two members")
        time.sleep(SETTLE_SECONDS)
        for name, end in (("a member leaves", Member.leave), ("a member is killed", Member.kill)):
            events += _come_and_go(watching, start, name, end)
        feeding.stop()
        time.sleep(SETTLE_SECONDS)
        first.leave()
        second.leave()
        seen = watching.seen()
        return _outcomes(seen, events), _lost(seen)


def _come_and_go(watching: Watching, start: StartMember, name: str, end: Callable[[Member], float]) -> list[Event]:
    """Let a third member come, and end as asked."""
    with start() as third:
        number = len(watching.members)
        watching.members.append(third)
        joined = third.first("starting")
        watching.wait(lambda seen: _owned(seen).get(number, 0) == SHARE, joined, "a third member")
        time.sleep(SETTLE_SECONDS)
        latest = watching.seen(time.monotonic() - SETTLE_SECONDS / 3)
        given = {call.queue for call in latest if call.member == number}
        ended = end(third)
        watching.wait(lambda seen: {call.queue for call in seen if call.member != number} >= given, ended, name)
        time.sleep(SETTLE_SECONDS)
    return [("a member joins", joined), (name, ended)]


def _owned(seen: list[Seen]) -> dict[int, int]:
    """How many queues each member has, by the latest call for each queue."""
    return Counter({call.queue: call.member for call in seen}.values())


def _outcomes(seen: list[Seen], events: list[Event]) -> dict[str, list[Handing]]:
    times = [call.at for call in seen]
    outcomes: dict[str, list[Handing]] = defaultdict(list)
    for (name, begin), (_, end) in zip(events, [*events[1:], ("", inf)], strict=True):
        at = bisect_left(times, begin)
        calls = seen[at : bisect_left(times, end)]
        outcomes[name].append(Handing(_moved(seen[:at], calls, begin), _repeats(seen[:at], calls)))
    return outcomes


def _moved(before: list[Seen], calls: list[Seen], begin: float) -> float:
    """Seconds from `begin` until the last queue that moved had a message at its new owner."""
    owners = {call.queue: call.member for call in before}
    last = begin
    for call in calls:
        if owners.get(call.queue) != call.member:
            owners[call.queue], last = call.member, call.at
    return last - begin


def _repeats(before: list[Seen], calls: list[Seen]) -> int:
    met = {(call.queue, call.offset) for call in before}
    met_again = 0
    for call in calls:
        met_again += (call.queue, call.offset) in met
        met.add((call.queue, call.offset))
    return met_again


def _lost(seen: list[Seen]) -> int:
    offsets: dict[int, set[int]] = defaultdict(set)
    for call in seen:
        offsets[call.queue].add(call.offset)
    return sum(max(found) + 1 - len(found) for found in offsets.values())
