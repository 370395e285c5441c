"""Looks at what a start is about to cut off the log: what a crash tore may go, what was stored for good may not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage
from pyromq.record import MAGIC_AT, MAGIC_BYTES, decode
from pyromq.store.log.segment import Segment
from pyromq.store.log.segmented_log import SegmentedLog

_SEARCHED = 16 << 20  # bytes behind the damage: three of the largest records. What lies further is seen by its queues
_PIECE = 1 << 20


class TruncationGuard(NamedTuple):
    """What the queues say about the log's end, and which entry says so: its file, and the byte there."""

    log_end: int = 0
    path: Path = Path()
    position: int = 0


def check_cut(files: SegmentedLog, end: int, *, claim: TruncationGuard, vouched_ms: int | None) -> None:
    """Raise `StoreCorrupt` if the log must not be cut at `end`: records behind it are sound, or known to queues.

    `vouched_ms`: after a power cut only records stored until then are known to have been on disk, and others may well
    be torn; None: everything written is there.
    """
    if vouched_ms is None and end < claim.log_end:
        known = f"{claim.path} byte {claim.position} knows one that ends at log offset {claim.log_end}"
        raise StoreCorrupt(_refusal(files, end, known))
    behind = sound_record_behind(files, end)
    if behind is not None and (vouched_ms is None or behind.store_ms <= vouched_ms):
        raise StoreCorrupt(_refusal(files, end, f"a sound one is behind, at log offset {behind.log_offset}"))


def _refusal(files: SegmentedLog, end: int, known: str) -> str:
    segment = files.find(end)
    if segment is None:
        place = f"{files.path_of(end)} is missing"
    else:
        place = f"{segment.path} byte {end - segment.base}: no sound record is there"
    return (
        f"{place}, but {known}; starting would cut them off."
        " `pyromq store check` tells what is damaged, `pyromq store repair` keeps every sound record"
    )


def sound_record_behind(files: SegmentedLog, position: int) -> StoredMessage | None:
    """Return the first sound record behind a log offset: near it in its file, or at the begin of a later one."""
    segment = files.find(position)
    if segment is None:
        return None
    start = position - segment.base
    for piece in range(start, min(start + _SEARCHED, segment.size), _PIECE):
        [content] = segment.read([(piece, _PIECE + len(MAGIC_BYTES))])  # mapped, holes would take room
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
