from collections.abc import Callable
from typing import Any

from pyromq.speedups.records import LogTail, QueueTail

class RecordIntake:
    def __init__(
        self, by_topic: dict[str, dict[int, Any]], followers: dict[str, Callable[[Any], None]], left_out: str
    ) -> None: ...
    def take(self, log: LogTail, written_end: int, file_end: int) -> dict[QueueTail, int]: ...
