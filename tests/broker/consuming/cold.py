"""A log that lies on the disk and is not in memory, and whether who answered has waited for it."""

import os
import resource
import threading
from concurrent.futures import wait
from pathlib import Path

import pytest

from pyromq.broker.cold_reads import ColdReads
from pyromq.slow_work import FilePiece
from pyromq.store.disk import LOCAL_DISK, LocalDisk

TAIL_BYTES = 4096  # the index follows these


def forget(paths):
    """Have files in no memory, as far as their file system does that; nobody may have them mapped."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def forget_log(store):
    """Have no record of an open store in memory. Skips the test on file systems whose files are nowhere else."""
    log = store.log_tail.files
    log.drop_pages_before(log.capacity_end)
    forget(segment.path for segment in log.segments)
    if not any(segment.to_load(0, segment.size) for segment in log.segments):
        pytest.skip("this file system keeps its files in memory")
    last = log.segments[-1]
    begin = max(store.max_log_offset - last.base - TAIL_BYTES, 0)
    LOCAL_DISK.load([FilePiece(last.path, begin, last.size - begin)])  # where it goes on


def waits_of_this_thread():
    """How often this thread has stood still until a page of a mapped file came from the disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


class WatchedDisk(LocalDisk):
    """Notes the files that are not mapped, and that the main thread has stood still for."""

    def __init__(self):
        self.waited_for = []

    def read(self, descriptor, size, position):
        if threading.current_thread() is threading.main_thread():
            at_once = super().read_now(descriptor, size, position)
            if at_once is not None:
                return at_once
            if position + size <= os.fstat(descriptor).st_size:
                self.waited_for.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return super().read(descriptor, size, position)


class LoadedAtOnce(ColdReads):
    """For tests that take a broker's steps themselves: what has to come from the disk is there for the next step.

    A page that is being written back may be had no sooner than one that is on the disk only, however new it is.
    """

    def fetch(self, unread, alarm):
        loading = super().fetch(unread, alarm)
        wait([loading])
        return loading
