"""Reads the queues of a topic as one sequence in order of store time: from a start, or only the newest messages.

Commits no offsets. Prints no messages; damaged messages are reported on standard error.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click

from pyromq.cli.times import END, Start
from pyromq.client.blocking.consumers import PullConsumer
from pyromq.client.client_config import Damaged
from pyromq.client.consumer.pulling import DamagedMessage, MessageDamaged, PullResult
from pyromq.errors import Unavailable
from pyromq.excerpt import escaped
from pyromq.logs import PARTIAL_RESULTS, logger_of
from pyromq.message import MessageQueue, StoredMessage

POLL_SECONDS = 0.5
MAX_LAST = 100_000  # newest messages that are held in memory, to be printed in the order they were stored
FIRST_BLOCK = 32  # offsets read first at the end of a queue, as in one pull; each further block is twice as long

partial_results = logger_of(PARTIAL_RESULTS)


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Reads queues without committing offsets: from `start`, or the `last` messages, up to `until_ms` (ms since 1970).

    After the last messages it stops, unless it must `follow` the topic.
    """

    consumer: PullConsumer
    queues: list[MessageQueue]
    chosen: Mapping[str, Any]  # arguments of `pull` that filter messages: `tags` or `sql`
    start: Start = END
    last: int | None = None
    follow: bool = False
    until_ms: int | None = None
    adds_queues: bool = False  # new queues of the topic are read too, for example of a broker that was away

    def messages(self) -> Iterator[StoredMessage]:
        """Yield existing messages in the order in which they were stored, then new messages as they arrive.

        If no new messages are wanted, a broker out of reach is left out and logged.
        """
        ends_here = self.until_ms is not None and self.until_ms <= time.time() * 1000
        ends_here = ends_here or (self.last is not None and not self.follow)
        ends = self._reachable_ends() if ends_here else {each: self.consumer.max_offset(each) for each in self.queues}
        found = False
        for message in self._history(ends):
            found = True
            yield message
        if not ends_here:
            yield from self._arriving(ends)
        elif not found:
            click.echo("no messages", err=True)

    def _reachable_ends(self) -> dict[MessageQueue, int]:
        ends: dict[MessageQueue, int] = {}
        silent: dict[str, Unavailable] = {}
        for queue in self.queues:
            if queue.broker_name not in silent:
                try:
                    ends[queue] = self.consumer.max_offset(queue)
                except Unavailable as error:
                    silent[queue.broker_name] = error
        if silent and not ends:
            raise next(iter(silent.values()))
        for name, reason in silent.items():
            partial_results.warning("broker %s is left out, it cannot be reached: %s", name, reason)
        return ends

    def _history(self, ends: Mapping[MessageQueue, int]) -> Iterator[StoredMessage]:
        if self.last is not None:
            newest = heapq.merge(*(self._backward(*each) for each in ends.items()), key=_stored, reverse=True)
            return reversed([*islice(newest, self.last)])
        if self.start == END:
            return iter(())
        return heapq.merge(
            *(self._between(queue, self._first(queue, end), end) for queue, end in ends.items()), key=_stored
        )

    def _backward(self, queue: MessageQueue, end: int) -> Iterator[StoredMessage]:
        """Yield the newest messages of a queue, the last one first. Brokers only read forward, so blocks are read."""
        least = self.consumer.min_offset(queue) if self.start == END else self._first(queue, end)
        size = FIRST_BLOCK
        while end > least:
            begin = max(end - size, least)
            yield from reversed(deque(self._between(queue, begin, end), self.last))
            end, size = begin, size * 2

    def _first(self, queue: MessageQueue, end: int) -> int:
        if self.start.time_ms is not None:
            # The found offset may be in the middle of the messages of that millisecond: start one millisecond earlier.
            return self.consumer.offset_by_time(queue, self.start.time_ms - 1)
        least = self.consumer.min_offset(queue)
        return min(max(self.start.offset or 0, least), end)

    def _between(self, queue: MessageQueue, offset: int, end: int) -> Iterator[StoredMessage]:
        while offset < end:
            found = self.consumer.pull(queue, offset, **self.chosen)
            for message in self._undamaged(found):
                if message.queue_offset >= end or self._is_late(message):
                    return
                if self.start.time_ms is None or message.store_ms >= self.start.time_ms:
                    yield message
            if found.next_offset <= offset:  # the queue's end has moved back meanwhile
                return
            offset = found.next_offset

    def _undamaged(self, found: PullResult) -> Iterator[StoredMessage]:
        """Yield a pull's undamaged messages in order. Report each damaged message, or raise for the first one."""
        all_of_them: list[StoredMessage | DamagedMessage] = [*found.messages, *found.damaged]
        for each in sorted(all_of_them, key=lambda each: each.queue_offset):
            if isinstance(each, StoredMessage):
                yield each
            elif self.consumer.config.damaged is Damaged.STOP:
                raise MessageDamaged(each)
            else:
                click.echo(f"damaged message in {escaped(str(each))}; it is skipped", err=True)

    def _arriving(self, ends: Mapping[MessageQueue, int]) -> Iterator[StoredMessage]:
        print_waiting()
        assigned = set(self.queues)

        def assign(queues: Iterable[MessageQueue]) -> None:
            assigned.update(queues)
            self.consumer.assign(assigned, **self.chosen)

        assign(self.consumer.watch_queues(self.queues[0].topic, assign) if self.adds_queues else ())
        for queue, end in ends.items():
            self.consumer.seek(queue, end)
        while self.until_ms is None or time.time() * 1000 < self.until_ms + POLL_SECONDS * 1000:
            for message in self.consumer.poll(timeout=POLL_SECONDS):
                if not self._is_late(message):
                    yield message

    def _is_late(self, message: StoredMessage) -> bool:
        return self.until_ms is not None and message.store_ms > self.until_ms


def print_waiting() -> None:
    if sys.stderr.isatty() and sys.stdout.isatty():
        click.echo("waiting for messages; stop with Ctrl-C", err=True)


def _stored(message: StoredMessage) -> tuple[int, str, int]:
    """Return the position in the order of store time. The log offset orders messages of one broker in a millisecond."""
    return message.store_ms, message.broker_name, message.log_offset
