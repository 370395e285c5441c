from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyromq.speedups.codec import HeaderReader, ReplyWriter
from pyromq.speedups.fast_path import FastGuard
from pyromq.speedups.reads import ReadHandler, ReadPlan, Reads
from pyromq.speedups.records import Counter, QueueTail

class PopPlan(ReadPlan):
    def __init__(
        self,
        popped: Mapping[int, Any],
        queues: Mapping[int, QueueTail],
        retries: Mapping[int, Any],
        retry_queues: Mapping[int, QueueTail],
        *,
        count: int,
        rounds: dict[tuple[str, str], int],
        key: tuple[str, str],
        codes: Collection[int] | None,
        counter: Counter,
    ) -> None: ...

class Pops(ReadHandler):
    def __init__(
        self,
        reader: HeaderReader,
        reads: Reads,
        *,
        plan_for: Callable[[list[Any]], PopPlan | None],
        version: Callable[[], object],
        now_ms: Callable[[], int],
        pop_of: Callable[[Any, int, int, int, int], Any],
        hand_out: Callable[[Any, int], bool],
        max_in_flight: Callable[[], int],
        total: Counter,
        writer: ReplyWriter,
        max_ms: int,
        max_bytes: int,
        guard: FastGuard | None = None,
    ) -> None: ...
