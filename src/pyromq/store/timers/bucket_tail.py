"""Where the next message of an hour goes: what is moved by every one that is filed.

The compiled parts file by the same object, without a call of Python. The entry's form is drawn in `timer_bucket`.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from typing import TYPE_CHECKING

from pyromq import speedups

_HEAD = struct.Struct(">qIIq")
_REST = struct.Struct(">HIi")
_pack_head, _pack_rest = _HEAD.pack, _REST.pack  # bound once: used for every message
_LOW_BITS = 0xFFFFFFFF

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.timed import BucketTail
else:

    class BucketTail:
        """`entries` are those that are not written yet, to be added to; the records of all end at `records_end`.

        `needed_from` is the log offset of the first record that is not copied, None if all are; `finished` has a byte
        for each message, or is None while nobody asks.
        """

        __slots__ = ("entries", "finished", "needed_from", "records_end")

        def add(self, due_ms: int, key_hash: int, topic_hash: int, log_offset: int, size: int) -> None:
            """Add a message by its place in the log. Log offsets must ascend. Called for every one."""
            head = _pack_head(due_ms, key_hash, topic_hash, log_offset)
            rest = _pack_rest(self.records_end >> 32, self.records_end & _LOW_BITS, size)
            self.entries += head + (crc_hqx(rest, crc_hqx(head, 0)) or 1).to_bytes(2) + rest
            self.records_end += size
            if self.needed_from is None:
                self.needed_from = log_offset
            if self.finished is not None:
                self.finished.append(0)


__all__ = ["BucketTail"]
