from typing import Any

class IndexTail:
    file: Any
    begin_ms: int
    end_ms: int
    begin_log_offset: int
    end_log_offset: int
    used_slots: int
    next_entry: int
    slots: int
    entries: int
    entries_at: int
    reserved_end: int
    stretch_bytes: int
    ready: bytearray
    def enter(
        self, records: memoryview, *, log_offset: int, last_store_ms: int, most: int, skipped: bytes
    ) -> tuple[int, int]: ...
