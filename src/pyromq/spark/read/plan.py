"""Divides offset ranges of queues into Spark tasks: long ranges are split, short ranges packed together.

Pure arithmetic, no Spark here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from pyromq.message import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets of one queue from `start` to `end`, which is exclusive."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.start, 0)


def partition(
    ranges: list[QueueRange],
    *,
    min_tasks: int | None = None,
    max_tasks: int | None = None,
    max_records: int | None = None,
) -> list[list[QueueRange]]:
    """Return the ranges of each task, with a queue's ranges in order of offsets. Empty ranges are dropped.

    A task costs tens of ms to start, so the default is one task per core for any number of queues.
    """
    ranges = [r for r in ranges if len(r)]
    if not ranges:
        return []
    pieces = _split(ranges, min_tasks, max_records)
    max_tasks = max_tasks or max(os.cpu_count() or 1, min_tasks or 1, len(pieces) if max_records or min_tasks else 1)
    return _pack(pieces, min(max_tasks, len(pieces)))


def share(backlogs: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """Divide `limit` offsets among queues in proportion to their backlogs, at least one offset each if possible.

    Return the number of offsets of each queue. The remainder goes to the queues that lost most by rounding down.
    """
    waiting = {queue: backlog for queue, backlog in backlogs.items() if backlog > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    exact = {queue: backlog * limit / total for queue, backlog in waiting.items()}
    shares = {queue: max(int(part), 1) for queue, part in exact.items()}
    over = sum(shares.values()) - limit
    by_need = sorted(waiting, key=lambda queue: shares[queue] - exact[queue])  # largest rounding loss first
    for queue in by_need[: max(-over, 0)]:
        shares[queue] += 1
    for queue in reversed(by_need):
        if over <= 0:
            break
        taken = min(over, shares[queue] if shares[queue] == 1 else shares[queue] - 1)
        shares[queue] -= taken
        over -= taken
    return {queue: count for queue, count in shares.items() if count}


def _split(ranges: list[QueueRange], min_tasks: int | None, max_records: int | None) -> list[QueueRange]:
    total = sum(map(len, ranges))
    size = max_records or total
    if min_tasks:
        size = min(size, max(-(-total // min_tasks), 1))
    pieces = []
    for r in ranges:
        count = -(-len(r) // size)
        cuts = [r.start + len(r) * number // count for number in range(count + 1)]
        pieces += [QueueRange(r.queue, a, b) for a, b in pairwise(cuts)]
    return pieces


def _pack(pieces: list[QueueRange], count: int) -> list[list[QueueRange]]:
    """Assign each piece, longest first, to the task with the fewest offsets."""
    tasks: list[list[QueueRange]] = [[] for _ in range(count)]
    loads = [0] * count
    for piece in sorted(pieces, key=len, reverse=True):
        lightest = loads.index(min(loads))
        tasks[lightest].append(piece)
        loads[lightest] += len(piece)
    return [sorted(task, key=lambda piece: (piece.queue, piece.start)) for task in tasks if task]
