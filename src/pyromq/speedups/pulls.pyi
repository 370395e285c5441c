from collections.abc import Callable, Collection
from typing import Any

from pyromq.speedups.codec import HeaderReader, ReplyWriter
from pyromq.speedups.fast_path import FastGuard, FastHandler
from pyromq.speedups.records import Counter, LogTail, QueueTail

MOST_TAGS: int
FIELDS: dict[str, int]

class PullPlan:
    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        queue: QueueTail,
        *,
        codes: Collection[int] | None,
        counter: Counter,
        facts: list[tuple[dict[str, Any], str, object]],
    ) -> None: ...

class Pulls(FastHandler):
    def __init__(
        self,
        reader: HeaderReader,
        log: LogTail,
        *,
        plan_for: Callable[[list[Any]], PullPlan | None],
        version: Callable[[], object],
        commit: Callable[[str, str, int, int], object],
        is_loaded: Callable[[int, int], bool],
        segment_of: Callable[[int], tuple[int, memoryview] | None],
        total: Counter,
        writer: ReplyWriter,
        max_bytes: int,
        max_count: int,
        bulk_bytes: int,
        bulk_count: int,
        scanned: int,
        recent_bytes: int,
        warm_bytes: int,
        guard: FastGuard | None = None,
    ) -> None: ...
