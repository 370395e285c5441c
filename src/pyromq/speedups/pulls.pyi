from collections.abc import Callable, Collection
from typing import Any

from pyromq.speedups.codec import HeaderReader, ReplyWriter
from pyromq.speedups.fast_path import FastGuard
from pyromq.speedups.reads import ReadHandler, ReadPlan, Reads
from pyromq.speedups.records import Counter, QueueTail

class PullPlan(ReadPlan):
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

class Pulls(ReadHandler):
    def __init__(
        self,
        reader: HeaderReader,
        reads: Reads,
        *,
        plan_for: Callable[[list[Any]], PullPlan | None],
        version: Callable[[], object],
        commit: Callable[[str, str, int, int], object],
        total: Counter,
        writer: ReplyWriter,
        guard: FastGuard | None = None,
    ) -> None: ...
