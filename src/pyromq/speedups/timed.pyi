from collections.abc import Callable
from typing import Any

from pyromq.speedups.codec import ReplyWriter
from pyromq.speedups.records import Counter

class BucketTail:
    records_end: int
    needed_from: int | None
    entries: bytearray
    finished: bytearray | None
    def add(self, due_ms: int, key_hash: int, topic_hash: int, log_offset: int, size: int) -> None: ...

class TimerIntake:
    refusal: str | None
    urgent_ms: int
    def __len__(self) -> int: ...
    def add(self, queue_offset: int, log_offset: int, size: int, scheduled: tuple[int, int, str]) -> bool: ...
    def continues_at(self, queue_offset: int) -> bool: ...
    def clear(self) -> None: ...
    def file(self, files: Any, *, near: int, unread: set[int]) -> None: ...

class TimedSends:
    def __init__(
        self,
        intake: TimerIntake,
        topic: str,
        *,
        find: Callable[[], tuple[Any, Counter] | None],
        limit_ms: Callable[[], int],
        advance_alarm: Callable[[int, int], None],
        file: Callable[[], None],
        writer_for: Callable[[], ReplyWriter],
        broker_name: str,
    ) -> None: ...
