"""Reads queues backwards from their ends, newest messages first, until enough matches are found or the time is up.

A queue is read in windows of growing size, and all queues equally deep. Several windows are pulled at once, but are
processed in order, so that matches and the place of the next page do not depend on the order of replies. Records arrive
in bulk as stored. A thread decodes only the records that may match, so the event loop stays free. Of each match, only
the parts for the page are kept, within a limit of bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from pyromq.client.consumer.pulling import PullResult
from pyromq.client.consumer.queue_reader import AsyncQueueReader, Bounds
from pyromq.errors import UsageError
from pyromq.message import MessageQueue, StoredMessage

PULL_BYTES = 1 << 19  # limit of one pull: a pyromq broker responds in half a millisecond
FIRST_WINDOW, LARGEST_WINDOW = 500, 20_000  # messages in the first and in the largest window of a queue
AT_ONCE = 4  # limit of windows pulled at the same time: brokers work while earlier responses are processed
MAX_PAGE_BYTES = 32 << 20  # limit of bytes kept of the matches for one page; each window in flight may keep as much
EQUALLY_DEEP = 64  # limit of queues that are read in parallel; further queues follow

T = TypeVar("T")
Order = tuple[float, int, int]  # sort key: negative store time and queue offset (newest first), and place

NOTHING_LEFT_OUT: Order = (inf, 0, 0)


class Match:
    """Decides which messages a search finds: here all, in subclasses fewer.

    Every matching record contains one of `words`, unless there are none or its body is compressed. With `ignores_case`,
    `words` are in lower case, and are found in either case.
    """

    words: tuple[bytes, ...] = ()
    ignores_case = False

    def accepts(self, message: StoredMessage) -> bool:
        return True


MATCH_ALL = Match()


@dataclass(frozen=True, slots=True)
class Projection(Generic[T]):
    """The part of a match that is kept. `make` extracts the part in a thread; `size` returns its size in bytes."""

    make: Callable[[StoredMessage], T]
    size: Callable[[T], int]

    def all(self, messages: Iterable[StoredMessage]) -> list[T]:
        """Return the kept parts of the matches, newest first, up to the limit of bytes."""
        kept: list[T] = []
        left = MAX_PAGE_BYTES
        for message in messages:
            value = self.make(message)
            left -= self.size(value)
            if left < 0 and kept:
                break
            kept.append(value)
        return kept


@dataclass(slots=True)
class ScanResult(Generic[T]):
    """The matches of a search, newest first.

    `read` is the number of messages read. `before` continues the search; it is empty at the end. `why` is the reason of
    an early end: `enough` matches, or `time`.
    """

    kept: list[T] = field(default_factory=list)
    read: int = 0
    before: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _QueueCursor:
    """The position of a search in a queue, which is read backwards.

    Messages from `at` on were read, and messages from `planned` on are being pulled.
    """

    number: int
    queue: MessageQueue
    least: int
    at: int
    window: int
    planned: int
    passed_over: int = 0  # matches below this offset were read but not shown: the next page begins with them

    @property
    def end_of_next_page(self) -> int:
        return max(self.at, self.passed_over)


@dataclass(frozen=True, slots=True)
class _Hit(Generic[T]):
    """The kept part of one match, with the sort key of its message."""

    store_ms: int
    offset: int
    place: _QueueCursor
    kept: T
    size: int

    @property
    def order(self) -> Order:
        return -self.store_ms, -self.offset, self.place.number


@dataclass(slots=True)
class _Window(Generic[T]):
    """A range of queue offsets that is read together, `end` excluded. `ends_round` marks the last window of a round."""

    place: _QueueCursor
    begin: int
    end: int
    ends_round: bool
    hits: list[_Hit[T]] = field(default_factory=list)  # newest first
    left_out: Order = NOTHING_LEFT_OUT  # sort key of the newest match that the page has no room for
    read: int = 0


class QueueScan(Generic[T]):
    """One search, backwards from the ends of queues with known bounds."""

    def __init__(
        self,
        reader: AsyncQueueReader,
        bounds: dict[MessageQueue, Bounds],
        match: Match,
        *,
        keeping: Projection[T],
        limit: int,
        seconds: float,
        tag: str = "*",
        sql: str | None = None,
    ) -> None:
        self._reader = reader
        self._match = match
        self._keeping = keeping
        self._limit = limit
        self._ends = time.monotonic() + seconds
        self._tag, self._sql = tag, sql
        is_filtered = tag != "*" or sql is not None or match is not MATCH_ALL
        size = FIRST_WINDOW if is_filtered else max(limit, 1)
        self._places = [
            _QueueCursor(number, queue, least, most, size, most)
            for number, (queue, (least, most)) in enumerate(bounds.items())
            if least < most
        ]
        # The matches for the page, newest first, within the limits of number and bytes.
        self._newest: list[_Hit[T]] = []
        self._left_out = NOTHING_LEFT_OUT  # the page may have no message older than this one
        self._read = 0

    async def run(self) -> ScanResult[T]:
        began = time.monotonic()
        await self._read_all()
        found = ScanResult([hit.kept for hit in self._newest], self._read, seconds=time.monotonic() - began)
        left = [each for each in self._places if each.end_of_next_page > each.least]
        if left:
            found.before = ",".join(
                f"{each.queue.topic}:{each.queue.broker_name}:{each.queue.queue_id}:{each.end_of_next_page}"
                for each in left
            )
            found.why = "enough" if self._is_full() else "time"
        return found

    async def _read_all(self) -> None:
        windows = self._windows()
        under_way: deque[asyncio.Task[_Window[T]]] = deque()
        try:
            while True:
                while len(under_way) < AT_ONCE and time.monotonic() < self._ends:
                    if (window := next(windows, None)) is None:
                        break
                    under_way.append(asyncio.create_task(self._filled(window)))
                if not under_way:
                    return
                window = await under_way.popleft()
                self._take(window)
                if window.ends_round and self._is_full():
                    return
        finally:
            for each in under_way:
                each.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _windows(self) -> Iterator[_Window[T]]:
        """Yield the windows to read, round by round.

        In each round a queue contributes the window before its last one.
        """
        while left := [each for each in self._places if each.planned > each.least]:
            for first in range(0, len(left), EQUALLY_DEEP):
                side_by_side = left[first : first + EQUALLY_DEEP]
                for place in side_by_side:
                    end, place.planned = place.planned, max(place.least, place.planned - place.window)
                    place.window = min(place.window * 4, LARGEST_WINDOW)
                    yield _Window(place, place.planned, end, ends_round=place is side_by_side[-1])

    async def _filled(self, window: _Window[T]) -> _Window[T]:
        offset = window.begin
        while offset < window.end:
            result = await self._reader.pull(
                window.place.queue,
                offset,
                max_count=window.end - offset,
                tags=self._tag,
                sql=self._sql,
                max_bytes=PULL_BYTES,
            )
            if result.next_offset <= offset:
                break  # retention deleted the messages, or the end is reached
            if result.raw:
                await asyncio.to_thread(self._add_hits, window, result, range(offset, window.end))
            window.read += min(result.next_offset, window.end) - offset
            offset = result.next_offset
        return window

    def _add_hits(self, window: _Window[T], result: PullResult, offsets: range) -> None:
        """Add the matches of a pull to its window, as far as the page has room.

        The pull is newer than the window's earlier pulls.
        """
        hits: list[_Hit[T]] = []
        left = MAX_PAGE_BYTES
        for message in reversed(result.holding(self._match.words, ignore_case=self._match.ignores_case)):
            if message.queue_offset not in offsets or not self._match.accepts(message):
                continue
            if left < 0:
                window.left_out = -message.store_ms, -message.queue_offset, window.place.number
                window.hits.clear()  # these matches are older than the one left out
                break
            kept = self._keeping.make(message)
            size = self._keeping.size(kept)
            hits.append(_Hit(message.store_ms, message.queue_offset, window.place, kept, size))
            left -= size
        window.hits, left_out = self._within_limits(hits + window.hits)
        window.left_out = min(window.left_out, left_out)

    def _take(self, window: _Window[T]) -> None:
        """Record that a window is read, and keep the newest matches of the page and the window."""
        place = window.place
        place.at = window.begin
        self._read += window.read
        if window.left_out != NOTHING_LEFT_OUT:
            place.passed_over = max(place.passed_over, 1 - window.left_out[1])
        hits = sorted(self._newest + window.hits, key=lambda hit: hit.order)
        self._newest, left_out = self._within_limits(hits)
        self._left_out = min(self._left_out, window.left_out, left_out)
        while self._newest and self._newest[-1].order > self._left_out:
            self._newest.pop()
        for hit in hits[len(self._newest) :]:
            hit.place.passed_over = max(hit.place.passed_over, hit.offset + 1)

    def _within_limits(self, hits: list[_Hit[T]]) -> tuple[list[_Hit[T]], Order]:
        """Return the first matches that fit on a page, and the sort key of the next one."""
        count, left = 0, MAX_PAGE_BYTES
        for hit in hits[: self._limit]:
            left -= hit.size
            if left < 0 and count:
                break
            count += 1
        return hits[:count], hits[count].order if count < len(hits) else NOTHING_LEFT_OUT

    def _is_full(self) -> bool:
        return len(self._newest) >= self._limit or self._left_out != NOTHING_LEFT_OUT


def narrowed(bounds: dict[MessageQueue, Bounds], before: str) -> dict[MessageQueue, Bounds]:
    """Return the bounds of queues for the page after an earlier page, without queues that the earlier page finished.

    `before` is the end of the earlier page. Raises `UsageError` for a malformed text.
    """
    if not before:
        return bounds
    found = {}
    for each in before.split(","):
        parts = each.rsplit(":", 3)
        if len(parts) != 4 or not all(each.isdecimal() and len(each) < 20 for each in parts[2:]):
            raise UsageError(f"before={before[:60]!r} is not the end of a page; start the search again")
        queue = MessageQueue(parts[0], parts[1], int(parts[2]))
        if queue in bounds:
            least, most = bounds[queue]
            found[queue] = (least, min(most, int(parts[3])))
    return found


async def bounds_between(
    reader: AsyncQueueReader, topics: Sequence[str], since_ms: int | None, until_ms: int | None
) -> dict[MessageQueue, Bounds]:
    """Return the bounds of the queues of topics, limited to messages stored between two times (ms, both included)."""
    bounds = await reader.bounds(topics, partial=True)
    if since_ms is None and until_ms is None:
        return bounds

    async def cut(queue: MessageQueue, at: Bounds) -> Bounds:
        least = await reader.first_since(queue, since_ms, at) if since_ms is not None else at[0]
        most = await reader.first_since(queue, until_ms + 1, at) if until_ms is not None else at[1]
        return least, most

    cuts = await asyncio.gather(*(cut(queue, at) for queue, at in bounds.items()))
    return dict(zip(bounds, cuts, strict=True))
