"""Reading queues from their ends backwards, newest messages first, until enough is found or the time is up.

A queue is read in windows; within one, records come in bulk as they are stored, and only windows in which something may
match are decoded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyromq.client.consumer.queue_reader import AsyncQueueReader, Bounds
from pyromq.errors import UsageError
from pyromq.message import MessageQueue, StoredMessage

PULL_BYTES = 1 << 19  # what a broker of ours gives at once when asked so
FIRST_WINDOW, LARGEST_WINDOW = 500, 20_000  # messages
AT_ONCE = 2  # queues that are read side by side: more answers of half a mebibyte only wait for each other
MOST_MATCHES = 10_000


class Match(Protocol):
    """What is looked for."""

    def may_be_in(self, raw: bytes | memoryview) -> bool: ...

    def accepts(self, message: StoredMessage) -> bool: ...


class Everything:
    """Matches every message."""

    def may_be_in(self, raw: bytes | memoryview) -> bool:
        return True

    def accepts(self, message: StoredMessage) -> bool:
        return True


@dataclass(slots=True)
class Found:
    """Newest first. `read` messages were looked at; `before` is where to go on, "" where everything was read.

    `why` is why it ended before: `enough`, or `time`.
    """

    messages: list[StoredMessage] = field(default_factory=list)
    read: int = 0
    before: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class _Place:
    """One queue: everything from `at` on was read."""

    queue: MessageQueue
    least: int
    at: int
    window: int = FIRST_WINDOW
    matches: list[StoredMessage] = field(default_factory=list)


class Scan:
    """One search in queues that were asked for their bounds."""

    def __init__(
        self,
        reader: AsyncQueueReader,
        bounds: dict[MessageQueue, Bounds],
        match: Match,
        *,
        limit: int,
        seconds: float,
        tag: str = "*",
        sql: str | None = None,
    ) -> None:
        self._reader = reader
        self._match = match
        self._limit = limit
        self._ends = time.monotonic() + seconds
        self._tag, self._sql = tag, sql
        is_filtered = tag != "*" or sql is not None or not isinstance(match, Everything)
        window = FIRST_WINDOW if is_filtered else max(limit, 1)
        self._places = [_Place(queue, least, most, window) for queue, (least, most) in bounds.items() if least < most]
        self._read = 0

    async def run(self) -> Found:
        began = time.monotonic()
        while (open_places := [each for each in self._places if each.at > each.least]) and not self._is_over():
            for start in range(0, len(open_places), AT_ONCE):
                await asyncio.gather(*(self._step(each) for each in open_places[start : start + AT_ONCE]))
                if self._is_over():
                    break
        matches = [message for place in self._places for message in place.matches]
        matches.sort(key=lambda each: (each.store_ms, each.queue_offset), reverse=True)
        shown, rest = matches[: self._limit], matches[self._limit :]
        found = Found(shown, self._read, seconds=time.monotonic() - began)
        for message in rest:  # read, but not shown: the next page begins with them
            place = next(each for each in self._places if each.queue == message.queue)
            place.at = max(place.at, message.queue_offset + 1)
        left = [each for each in self._places if each.at > each.least]
        if left:
            found.before = ",".join(
                f"{each.queue.topic}:{each.queue.broker_name}:{each.queue.queue_id}:{each.at}" for each in left
            )
            found.why = "enough" if len(shown) == self._limit else "time"
        return found

    def _is_over(self) -> bool:
        enough = sum(len(each.matches) for each in self._places) >= self._limit
        return enough or time.monotonic() > self._ends

    async def _step(self, place: _Place) -> None:
        """Read the window before what was read of a queue."""
        begin = max(place.least, place.at - place.window)
        offset, found = begin, []
        while offset < place.at:
            result = await self._reader.pull(
                place.queue,
                offset,
                max_count=min(place.at - offset, LARGEST_WINDOW),
                tags=self._tag,
                sql=self._sql,
                max_bytes=PULL_BYTES,
            )
            if result.next_offset <= offset:
                break  # expired meanwhile, or the end
            if result.raw and self._match.may_be_in(result.raw):
                accepts = self._match.accepts
                found += [each for each in result.messages if offset <= each.queue_offset < place.at and accepts(each)]
            self._read += min(result.next_offset, place.at) - offset
            offset = result.next_offset
        place.matches = found + place.matches if len(place.matches) < MOST_MATCHES else place.matches
        place.at = begin
        place.window = min(place.window * 4, LARGEST_WINDOW)


def narrowed(bounds: dict[MessageQueue, Bounds], before: str) -> dict[MessageQueue, Bounds]:
    """Return the bounds that an earlier page left; queues that it had read are not in it. Raises `UsageError`."""
    if not before:
        return bounds
    found = {}
    for each in before.split(","):
        parts = each.rsplit(":", 3)
        if len(parts) != 4 or not parts[2].isdecimal() or not parts[3].isdecimal():
            raise UsageError(f"before={before[:60]!r} is not where a page ended")
        queue = MessageQueue(parts[0], parts[1], int(parts[2]))
        if queue in bounds:
            least, most = bounds[queue]
            found[queue] = (least, min(most, int(parts[3])))
    return found


async def bounds_between(
    reader: AsyncQueueReader, topics: Sequence[str], since_ms: int | None, until_ms: int | None
) -> dict[MessageQueue, Bounds]:
    """Return the bounds of topics' queues, cut to what was stored between two times (ms, both included)."""
    bounds = await reader.bounds(topics)
    if since_ms is None and until_ms is None:
        return bounds

    async def cut(queue: MessageQueue, at: Bounds) -> Bounds:
        least = await reader.first_since(queue, since_ms, at) if since_ms is not None else at[0]
        most = await reader.first_since(queue, until_ms + 1, at) if until_ms is not None else at[1]
        return least, most

    cuts = await asyncio.gather(*(cut(queue, at) for queue, at in bounds.items()))
    return dict(zip(bounds, cuts, strict=True))
