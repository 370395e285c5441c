from collections.abc import Callable, Collection

from pyromq.speedups.fast_path import FastHandler
from pyromq.speedups.records import LogTail

MAX_TAGS: int

class TagCodes:
    def __init__(self, codes: Collection[int] | None) -> None: ...

class Reads:
    def __init__(
        self,
        log: LogTail,
        *,
        is_loaded: Callable[[int, int], bool],
        segment_of: Callable[[int], tuple[int, memoryview] | None],
        max_bytes: int,
        max_count: int,
        bulk_bytes: int,
        bulk_count: int,
        scanned: int,
        recent_bytes: int,
        warm_bytes: int,
    ) -> None: ...

class ReadPlan: ...
class ReadHandler(FastHandler): ...
