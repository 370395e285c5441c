from collections.abc import Callable, Collection
from typing import Any

from pyromq.speedups.codec import HeaderReader, ReplyWriter
from pyromq.speedups.fast_path import FastGuard, FastHandler
from pyromq.speedups.reads import Reads
from pyromq.speedups.records import Counter, QueueTail

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
        reads: Reads,
        *,
        plan_for: Callable[[list[Any]], PullPlan | None],
        version: Callable[[], object],
        commit: Callable[[str, str, int, int], object],
        total: Counter,
        writer: ReplyWriter,
        guard: FastGuard | None = None,
    ) -> None: ...
