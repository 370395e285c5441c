class LogTail:
    end: int
    readable_to: int
    last_store_ms: int
    base: int
    limit: int
    max_record_bytes: int
    memory: memoryview | None

class QueueTail:
    min_offset: int
    max_offset: int
    unverified_end: int
    reserved: int
    base: int
    end: int
    memory: memoryview | None

class Counter:
    times: int
    count: int
    size: int
    def __init__(self, times: int = 0, count: int = 0, size: int = 0) -> None: ...
    def add(self, count: int, size: int, *, times: int = 1) -> None: ...

def own_records(
    entries: memoryview, memory: memoryview, base: int, end: int, queue_id: int, queue_offset: int
) -> int: ...
def crc32(data: bytes | bytearray | memoryview) -> int: ...
def java_hash(text: str) -> int: ...
def make_ready(
    descriptor: int, memory: memoryview, position: int, size: int, urgent: bytes | bytearray | memoryview = ...
) -> None: ...
def write_out(descriptor: int, position: int, size: int) -> None: ...
