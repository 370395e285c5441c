"""Checks what a start would truncate from the log: incomplete records of a crash may go, stored records may not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage
from pyromq.record import MAGIC_AT, MAGIC_BYTES, decode
from pyromq.store.log.segment import Segment
from pyromq.store.log.segmented_log import SegmentedLog

_SEARCHED = 16 << 20  # bytes searched after damage: three of the largest records; queues know of records further on
_PIECE = 1 << 20


class TruncationGuard(NamedTuple):
    """The end of the log by the queue entry that leads furthest, with that entry's file and byte."""

    log_end: int = 0
    path: Path = Path()
    position: int = 0


def check_cut(files: SegmentedLog, end: int, *, guard: TruncationGuard, trusted_ms: int | None) -> None:
    """Raise `StoreCorrupt` if the log must not be truncated at `end`: later records are intact or known to queues.

    After a power loss `trusted_ms` is the store time up to which records were on disk: later ones may be damaged.
    None means that everything written exists.
    """
    if trusted_ms is None and end < guard.log_end:
        known = f"{guard.path} byte {guard.position} leads to a record that ends at log offset {guard.log_end}"
        raise StoreCorrupt(_refusal(files, end, known))
    following = next_intact_record(files, end)
    if following is not None and (trusted_ms is None or following.store_ms <= trusted_ms):
        raise StoreCorrupt(_refusal(files, end, f"an intact one follows at log offset {following.log_offset}"))


def _refusal(files: SegmentedLog, end: int, known: str) -> str:
    segment = files.find(end)
    if segment is None:
        place = f"{files.path_of(end)} is missing"
    else:
        place = f"{segment.path} byte {end - segment.base}: no intact record is there"
    return (
        f"{place}, but {known}; starting would delete records."
        " `pyromq store check` shows the damage, `pyromq store repair` keeps every intact record"
    )


def next_intact_record(files: SegmentedLog, position: int) -> StoredMessage | None:
    """Return the first intact record after a log offset: near it in its file, or at the start of a later file."""
    segment = files.find(position)
    if segment is None:
        return None
    start = position - segment.base
    for piece in range(start, min(start + _SEARCHED, segment.size), _PIECE):
        [content] = segment.read([(piece, _PIECE + len(MAGIC_BYTES))])  # not mapped, which would allocate holes
        found = content.find(MAGIC_BYTES)
        while found >= 0:
            if piece + found - MAGIC_AT > start and (record := _record(segment, piece + found - MAGIC_AT)):
                return record
            found = content.find(MAGIC_BYTES, found + 1)
    for later in files.segments:
        if later.base > position and (record := _record(later, 0)):
            return record
    return None


def _record(segment: Segment, position: int) -> StoredMessage | None:
    try:
        memory = segment.written(position)
        record = decode(memory, position, check_crc=True)
    except StoreCorrupt:
        return None
    is_whole = position + record.size <= len(memory)
    return record if is_whole and record.log_offset == segment.base + position else None
