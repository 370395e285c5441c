"""The two ends of a queue, and where its next entry goes: what is moved by every append.

The compiled parts append and read by the same object, without a call of Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq import speedups

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.records import QueueTail
else:

    class QueueTail:
        """`min_offset` is the first queue offset whose record is still there, `max_offset` the next to give.

        Entries before `reserved` find room on disk; those before `doubted_to` were there when the store was opened. The
        file that is written begins at entry `base`, has room before `end`, and is mapped as `memory`.
        """

        __slots__ = ("base", "doubted_to", "end", "max_offset", "memory", "min_offset", "reserved")

        base: int
        doubted_to: int
        end: int
        max_offset: int
        memory: memoryview | None
        min_offset: int
        reserved: int


__all__ = ["QueueTail"]
