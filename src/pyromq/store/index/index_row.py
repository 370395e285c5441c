"""Whether the files of the key index follow each other without a gap, as heads and log say. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from pyromq.store.index.index_file import IndexFile
from pyromq.store.log.commit_log import CommitLog

_LOOKED_THROUGH = 10_000  # records without keys between two files, before it is taken for granted that all are


def first_fault(files: Sequence[IndexFile], log: CommitLog, has_keys: Callable[[memoryview], bool]) -> tuple[int, str]:
    """Return which file is the first that cannot be believed, and why; the number of files and "" if all can.

    `has_keys` tells whether a record has to be in the index.
    """
    indexed_to: int | None = log.min_offset
    for number, file in enumerate(files):
        if fault := _head_fault(file, log) or _gap_before(file, indexed_to, log, has_keys):
            return number, fault
        last = log.record_at(file.end_log_offset)
        indexed_to = None if last is None else file.end_log_offset + len(last)
    return len(files), ""


def _head_fault(file: IndexFile, log: CommitLog) -> str:
    if not file.has_plausible_head:
        return "its head is damaged"
    if file.is_empty:
        return ""
    for log_offset in (file.begin_log_offset, file.end_log_offset):
        if log.min_offset <= log_offset < log.end and log.record_at(log_offset) is None:
            return f"it speaks of log offset {log_offset}, where no record begins"
    return ""


def _gap_before(file: IndexFile, start: int | None, log: CommitLog, has_keys: Callable[[memoryview], bool]) -> str:
    if start is None or file.is_empty or file.begin_log_offset <= start:
        return ""
    for log_offset, record in islice(log.records_from(start), _LOOKED_THROUGH):
        if log_offset >= file.begin_log_offset:
            break
        if has_keys(record):
            return (
                f"the file before is missing: keys from log offset {log_offset} to {file.begin_log_offset} are in none"
            )
    return ""
