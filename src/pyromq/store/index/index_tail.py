"""The end of an index file, where the next entry goes: what is moved by every key of every message.

The compiled parts enter ordinary records by the same object, without a call of Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq import speedups

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.indexing import IndexTail
else:

    class IndexTail:
        """What the header says, and where what lies in `file`. Entries have room up to position `room_to`; of the
        slots, those on stretches of so many bytes can be written for certain whose byte in `ready` is 1.

        The compiled form has a method more, `enter(records, log_offset=, last_store_ms=, most=, skipped=)`: enters what
        lies back to back in a view of the log, those of topic `skipped` aside, up to the first one that is not
        ordinary; returns the log offset reached, and how many those are. Many keys of a record count as more records.
        """

        __slots__ = (
            "begin_log_offset",
            "begin_ms",
            "end_log_offset",
            "end_ms",
            "entries",
            "entries_at",
            "file",
            "next_entry",
            "ready",
            "room_to",
            "slots",
            "stretch_bytes",
            "used_slots",
        )


__all__ = ["IndexTail"]
