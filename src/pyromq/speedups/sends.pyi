from collections.abc import Callable
from typing import Any

from pyromq.speedups.codec import HeaderReader, ReplyWriter
from pyromq.speedups.fast_path import FastGuard, FastHandler, ParkedReplies
from pyromq.speedups.records import Counter, LogTail
from pyromq.speedups.timed import TimedSends

class SendPlan:
    def __init__(
        self,
        topic: str,
        queues: dict[int, Any] | None,
        queue_count: int,
        *,
        more_flags: int,
        counter: Counter | None,
        takes_times: bool,
    ) -> None: ...

class Sends(FastHandler):
    def __init__(
        self,
        reader: HeaderReader,
        log: LogTail,
        *,
        plan_for: Callable[[str], SendPlan | None],
        version: Callable[[], object],
        busy: dict[str, Any],
        parked: dict[Any, Any],
        arrived: Callable[[str, int, int, int], None],
        now_ms: Callable[[], int],
        store: Any,
        writer_for: Callable[[], ReplyWriter],
        timed: TimedSends,
        cluster_pair: str,
        max_message_bytes: int,
        unconfirmed: ParkedReplies,
        guard: FastGuard | None = None,
    ) -> None: ...
