"""Finding records by what is in them, many at once: those that hold none of some words are not decoded."""

from __future__ import annotations

import struct

from pyromq import speedups
from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage, SysFlag
from pyromq.record import FIXED_SIZE, MAGIC, decode_plainly, sys_flag_of, unpack_size_and_magic

if speedups.is_active:
    from pyromq.speedups.decoding import RecordDecoder

_decoder = RecordDecoder(StoredMessage) if speedups.is_active else None


def decode_holding(
    raw: bytes | bytearray | memoryview, words: tuple[bytes, ...], *, broker_name: str = ""
) -> list[StoredMessage]:
    """Return, of records back to back, those that hold one of these words anywhere, and all with compressed bodies.

    Raises `StoreCorrupt` where one of these is broken, or where the next record does not begin behind the one before.
    """
    if _decoder is not None and (found := _decoder.decode_holding(raw, words, broker_name)) is not None:
        return found
    data = bytes(raw)
    messages = []
    position = 0
    while position < len(data):
        end = position + _size_at(data, position)
        is_compressed = sys_flag_of(memoryview(data)[position:]) & SysFlag.COMPRESSED
        if is_compressed or any(data.find(word, position, end) >= 0 for word in words):
            messages.append(decode_plainly(data, position))
            messages[-1].broker_name = broker_name
        position = end
    return messages


def _size_at(data: bytes, position: int) -> int:
    try:
        size, magic = unpack_size_and_magic(data, position)
    except struct.error:
        size = magic = 0
    if magic != MAGIC or not FIXED_SIZE <= size <= len(data) - position:
        raise StoreCorrupt(f"no record at byte {position} of {len(data)}")
    return int(size)
