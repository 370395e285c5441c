from typing import Any

from pyromq.speedups.records import LogTail, QueueTail

class Members:
    count: int
    @property
    def first_text(self) -> str: ...
    def next_slice(self, first: int, most: int, max_bytes: int) -> int: ...
    def record_bytes(self, first: int, count: int, topic_size: int) -> int: ...
    def append(
        self,
        log: LogTail,
        first: int,
        count: int,
        topic: bytes,
        *,
        queue_id: int,
        queue_offset: int,
        sys_flag: int,
        born_ms: int,
        born_address: bytes,
        now_ms: int,
        store_address: bytes,
        reconsume_times: int,
        prepared_offset: int,
    ) -> bool: ...
    def enter(self, queue: QueueTail, first: int, count: int, topic_size: int, log_offset: int) -> int: ...
    def arrivals(self, first: int, count: int, topic_size: int, log_offset: int) -> list[tuple[int, int]]: ...
    def ids(self, topic_size: int, store_address: bytes, log_offset: int) -> str: ...

def keep_memory(most: int) -> bool: ...
def read_members(body: bytes, more: bytes) -> Members | None: ...
def write_members(
    flags: Any, bodies: tuple[Any, Any], texts: tuple[Any, Any], first: int, last: int
) -> bytes: ...  # buffers
