"""Judges a history: whatever was confirmed is there, at its place, and was delivered; nothing else was shown.

    python -m tests.failover.judge FILE

Repeated deliveries are no fault: they are counted. A message that retention has deleted was where groups saw it.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

from tests.failover.history import Accident, Began, Deleted, History, Outcome, Seen, Sent, Stored

INFINITE = float("inf")
TOGETHER_SECONDS = 1.0  # between accidents that happen together, for example to master and etcd
Place = tuple[str, int, int]  # topic, queue, queue offset


class What(Enum):
    """The faults that a replica set must not have."""

    LOST = "confirmed, and not there"
    MOVED = "confirmed at one place, and there at another"
    TWICE = "one place confirmed for two messages"
    GONE = "seen by a group, and not there"
    UNDELIVERED = "confirmed, and never delivered to a group"
    OLD_MASTER = "confirmed by an old master, though sent after the new one had begun"
    DOUBLED = "sent once, and there at two places"
    ROLLED_BACK = "rolled back, and visible"
    INVENTED = "there, and never sent"
    DISORDER = "confirmed before another one was sent, and behind it in the queue"


@dataclass(frozen=True)
class Fault:
    what: What
    text: str

    def __str__(self) -> str:
        return f"{self.what.value}: {self.text}"


@dataclass
class Verdict:
    """Faults, and what to say of a history without them."""

    faults: list[Fault]
    sent: int = 0
    confirmed: int = 0
    masters: int = 0
    repeats: Counter[str] = field(default_factory=Counter)  # by group
    longest_pause: float = 0.0  # time between two confirmations, in seconds
    # For each kind of accident: the longest time without a confirmation after each one, until the next accident.
    pauses: dict[str, list[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        repeats = ", ".join(f"{group} {count}" for group, count in sorted(self.repeats.items())) or "none"
        text = (
            f"{self.sent} sent, {self.confirmed} confirmed, {self.masters} masters, longest pause "
            f"{self.longest_pause:.2f} s, repeated deliveries: {repeats}; {len(self.faults)} faults"
        )
        found = Counter(fault.what.value for fault in self.faults)
        counts = [f"  {count} x {what}" for what, count in found.items()]
        for what, seconds in sorted(self.pauses.items()):
            text += (
                f"\n  {what}: {len(seconds)} times, pause median {median(seconds):.2f} s, at most {max(seconds):.2f} s"
            )
        return "\n".join([text, *counts, *(f"    {fault}" for fault in self.faults[:20])])


def judge(history: History, groups: tuple[str, ...] = ()) -> Verdict:
    """Judge a history that ends with a scan of all queues. `groups` must have got all that is confirmed."""
    sends, seen = history.of(Sent), history.of(Seen)
    confirmed = [each for each in sends if each.outcome is Outcome.CONFIRMED]
    stored = _stored(history, seen)
    begun = sorted(history.of(Began), key=lambda each: each.epoch)
    faults = [
        *_lost_or_moved(confirmed, stored),
        *_twice(confirmed),
        *_gone(seen, stored),
        *_undelivered(confirmed, seen, groups),
        *_by_old_masters(confirmed, begun),
        *_wrongly_there(sends, stored),
        *_disorder(confirmed),
    ]
    deliveries = Counter((each.group, each.body) for each in seen)
    repeats: Counter[str] = Counter()
    for (group, _), count in deliveries.items():
        repeats[group] += count - 1
    times = sorted(each.answered_at for each in confirmed)
    pause = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    pauses = _pauses(times, history.of(Accident))
    return Verdict(faults, len(sends), len(confirmed), len(begun), +repeats, pause, pauses)


def _stored(history: History, seen: list[Seen]) -> dict[Place, str]:
    """Return the message of each place; of a place that retention has deleted, what a group saw there first."""
    deleted = {(each.topic, each.queue): each.before for each in history.of(Deleted)}
    stored: dict[Place, str] = {(each.topic, each.queue, each.offset): each.body for each in history.of(Stored)}
    for each in seen:
        if each.offset < deleted.get((each.topic, each.queue), 0):
            stored.setdefault((each.topic, each.queue, each.offset), each.body)
    return stored


def _pauses(times: list[float], accidents: list[Accident]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for at, accident in enumerate(accidents):
        later = (each.at for each in accidents[at + 1 :] if each.at > accident.at + TOGETHER_SECONDS)
        end = next(later, times[-1] if times else accident.at)
        within = times[bisect_right(times, accident.at) : bisect_right(times, end)]
        pause = max((later - earlier for earlier, later in pairwise([accident.at, *within, end])), default=0.0)
        found.setdefault(accident.what, []).append(pause)
    return found


def _place(each: Sent) -> Place | None:
    return None if each.queue is None or each.offset is None else (each.topic, each.queue, each.offset)


def _lost_or_moved(confirmed: list[Sent], stored: dict[Place, str]) -> Iterator[Fault]:
    places: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for place, body in stored.items():
        places[place[0], body].append(place)
    for each in confirmed:
        found = places.get((each.topic, each.body), [])
        wanted = _place(each)
        at = "" if wanted is None else f" at {wanted}"
        if not found:
            instead = "" if wanted is None else f", where {stored.get(wanted, 'nothing')!r} is"
            yield Fault(What.LOST, f"{each.body!r} by {each.broker}{at}{instead}")
        elif wanted is not None and wanted not in found:
            yield Fault(What.MOVED, f"{each.body!r} by {each.broker}{at}, there at {found}")


def _twice(confirmed: list[Sent]) -> Iterator[Fault]:
    by_place: dict[Place, Sent] = {}
    for each in confirmed:
        if (place := _place(each)) is None:
            continue
        other = by_place.setdefault(place, each)
        if other.body != each.body:
            yield Fault(What.TWICE, f"{place}: {other.body!r} by {other.broker}, {each.body!r} by {each.broker}")


def _gone(seen: list[Seen], stored: dict[Place, str]) -> Iterator[Fault]:
    for (topic, queue, offset, body), groups in _by_delivery(seen).items():
        found = stored.get((topic, queue, offset))
        if found != body:
            text = f"{body!r} at {(topic, queue, offset)} by {', '.join(sorted(groups))}"
            yield Fault(What.GONE, f"{text}, where {'nothing' if found is None else repr(found)} is")


def _by_delivery(seen: list[Seen]) -> dict[tuple[str, int, int, str], set[str]]:
    found: dict[tuple[str, int, int, str], set[str]] = defaultdict(set)
    for each in seen:
        found[each.topic, each.queue, each.offset, each.body].add(each.group)
    return found


def _undelivered(confirmed: list[Sent], seen: list[Seen], groups: tuple[str, ...]) -> Iterator[Fault]:
    got: dict[str, set[str]] = defaultdict(set)
    for each in seen:
        got[each.group].add(each.body)
    for group in groups:
        for send in confirmed:
            if send.body not in got[group]:
                yield Fault(What.UNDELIVERED, f"{send.body!r} ({send.kind.value}, {_place(send)}) to {group}")


def _by_old_masters(confirmed: list[Sent], begun: list[Began]) -> Iterator[Fault]:
    """A master has begun when it confirmed a message after the registry named it."""
    earliest = {broker: _EarliestAnswer(confirmed, broker) for broker in {master.broker for master in begun}}
    for at, master in enumerate(begun):
        by_master = (each.answered_at for each in confirmed if each.broker == master.broker)
        start = min((answered for answered in by_master if answered >= master.at), default=INFINITE)
        again = {later.broker: later.at for later in reversed(begun[at + 1 :])}
        for each in confirmed:
            if each.sent_at <= start or each.broker == master.broker:
                continue
            # The broker may have confirmed it as a later master: then this one confirmed nothing in between.
            comes_back = again.get(each.broker, -INFINITE)
            if earliest[master.broker].of_sends_after(each.answered_at) < comes_back or each.broker not in again:
                text = f"{each.body!r} by {each.broker}, sent {each.sent_at - start:.3f} s after the first"
                yield Fault(What.OLD_MASTER, f"{text} confirmation of {master.broker}, epoch {master.epoch}")


class _EarliestAnswer:
    """Finds when a broker first confirmed a message that was sent after some time."""

    def __init__(self, confirmed: list[Sent], broker: str) -> None:
        sends = sorted((each.sent_at, each.answered_at) for each in confirmed if each.broker == broker)
        self._sent = [sent for sent, _ in sends]
        self._answered = list(accumulate((answered for _, answered in reversed(sends)), min, initial=INFINITE))[::-1]

    def of_sends_after(self, at: float) -> float:
        return self._answered[bisect_right(self._sent, at)]


def _wrongly_there(sends: list[Sent], stored: dict[Place, str]) -> Iterator[Fault]:
    by_body = {(each.topic, each.body): each for each in sends}
    places: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for place, body in stored.items():
        places[place[0], body].append(place)
    for (topic, body), found in places.items():
        send = by_body.get((topic, body))
        if send is None:
            yield Fault(What.INVENTED, f"{body!r} at {found}")
        elif send.outcome is Outcome.ROLLED_BACK:
            yield Fault(What.ROLLED_BACK, f"{body!r} at {found}")
        elif len(found) > 1 and send.once:
            yield Fault(What.DOUBLED, f"{body!r} ({send.kind.value}) at {sorted(found)}")


def _disorder(confirmed: list[Sent]) -> Iterator[Fault]:
    queues: dict[tuple[str, int], list[tuple[int, Sent]]] = defaultdict(list)
    for each in confirmed:
        if each.queue is not None and each.offset is not None:
            queues[each.topic, each.queue].append((each.offset, each))
    for (topic, queue), entries in queues.items():
        earliest: tuple[int, Sent] | None = None  # of those behind the entry, the one that was confirmed first
        for offset, each in sorted(entries, key=lambda entry: entry[0], reverse=True):
            if earliest is not None and earliest[1].answered_at < each.sent_at:
                text = f"{earliest[1].body!r} at {earliest[0]}, then {each.body!r} at {offset}"
                yield Fault(What.DISORDER, f"{text} of queue {queue} of {topic}")
            if earliest is None or each.answered_at < earliest[1].answered_at:
                earliest = offset, each


def main() -> int:
    history = History.load(Path(sys.argv[1]))
    verdict = judge(history, tuple(sorted({each.group for each in history.of(Seen)})))
    print(verdict)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
