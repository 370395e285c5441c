"""The end of the log, where the next record goes: what is moved by every append.

The compiled parts append by the same object, without a call of Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq import speedups

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.records import LogTail
else:

    class LogTail:
        """`end` is the log offset behind the last record. The segment that is written begins at `base` and is mapped as
        `memory`; an append that would end behind `limit`, or take more than `max_record_bytes`, takes the slow way.
        """

        end = 0
        last_store_ms = 0
        base = 0
        limit = -1
        max_record_bytes = 0
        memory: memoryview | None = None


__all__ = ["LogTail"]
