"""A log that lies on the disk and is not in memory, and whether who answered has waited for it."""

import os
import resource

import pytest

from pyromq.store.disk import LOCAL_DISK


def forget(folder):
    """Have the files of a folder in no memory, as far as the file system does that; nobody may have them mapped."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def forget_log(store):
    """Have no record of an open store in memory. Skips the test on file systems whose files are nowhere else."""
    log = store.log_tail.files
    log.forget_before(log.capacity_end)
    forget(log.folder)
    if LOCAL_DISK.is_loaded([segment.memory for segment in log.segments]):
        pytest.skip("this file system keeps its files in memory")
    last = log.segments[-1]
    LOCAL_DISK.load([last.memory[store.max_log_offset - last.base - 1 :]])  # where it goes on


def reads_of_this_thread():
    """How often this thread has stood still until a page came from the disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
