# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writes records and queue entries into the mapped files, and allocates disk space for them.

Python code and compiled code append through the same `LogTail` and `QueueTail` objects, so both see one end of the log.
"""

import mmap
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EFAULT, EINTR, EINVAL, ENOSPC, ENOSYS, ESPIPE, errno as c_errno
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memchr, memcpy

from pyromq.speedups.constants cimport *
from pyromq.speedups.kernels cimport crc32_of, crc32_setup, get_u32, get_u64, java_hash_on, put_u16, put_u32, put_u64

cdef extern from "<fcntl.h>" nogil:
    int posix_fallocate(int descriptor, int64_t position, int64_t size)
    int sync_file_range(int descriptor, int64_t position, int64_t size, unsigned int flags)
    unsigned int SYNC_FILE_RANGE_WRITE

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* at, size_t size, int advice)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int nanosleep(const timespec* duration, timespec* left)
    int clock_gettime(int clock, timespec* now)
    int CLOCK_THREAD_CPUTIME_ID

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int descriptor, const void* data, size_t size, int64_t position)

cdef enum:
    PIECE = 1 << 19  # bytes prepared or written per step: 0.1 ms
    WORK_NS = 100_000  # processor time between two pauses; yielding without a pause would not let other threads run
    PAUSE_NS = 500_000  # length of a pause: 16 MiB are prepared in 25 ms; at full speed, in 20 ms without pauses
    MADV_POPULATE_WRITE = 23

cdef char _ZEROS[PIECE]
cdef int64_t _page_bytes = mmap.PAGESIZE

crc32_setup()


cdef class Mapped:
    """A mapped file to write into: `memory` is the mapping, `at` its address. `at` is NULL if the file is read-only."""

    def __cinit__(self):
        self.at = NULL

    @property
    def memory(self):
        return self._memory

    @memory.setter
    def memory(self, memory):
        cdef Py_buffer view
        self.at = NULL
        self._memory = memory
        if memory is not None:
            # `memory` keeps the file mapped. The buffer is released, as an exported buffer would never be collected.
            PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
            if not view.readonly:
                self.at = <char*> view.buf
            PyBuffer_Release(&view)


cdef class LogTail(Mapped):
    """See `pyromq.store.log.commit_log`."""

    def __cinit__(self):
        self.limit = -1
        self.readable_to = <int64_t> 1 << 62  # NO_LIMIT in Python


cdef class QueueTail(Mapped):
    """See `pyromq.store.queue.consume_queue`."""


cdef class Counter:
    """See `pyromq.broker.statistics`."""

    def __init__(self, times=0, count=0, size=0):
        self.times = times
        self.count = count
        self.size = size

    def add(self, count, size, *, times=1):
        self.times += times
        self.count += count
        self.size += size


cdef bint is_own_record(
    const char* p, int64_t log_offset, int64_t size, int64_t queue_id, int64_t queue_offset
) noexcept nogil:
    """Return True if the head at `p` is that of the record with this size, log offset, queue id and queue offset."""
    return (
        size >= RECORD_FIXED_BYTES
        and get_u32(p) == <uint32_t> size
        and get_u32(p + RECORD_MAGIC_AT) == <uint32_t> RECORD_MAGIC
        and <int32_t> get_u32(p + RECORD_QUEUE_ID_AT) == queue_id
        and <int64_t> get_u64(p + RECORD_QUEUE_OFFSET_AT) == queue_offset
        and <int64_t> get_u64(p + RECORD_LOG_OFFSET_AT) == log_offset
    )


def own_records(entries, memory, int64_t base, int64_t end, int64_t queue_id, int64_t queue_offset):
    """Return how many of the first `entries` lead to their own record in the log file `memory`.

    The file begins at log offset `base`; `end` is the log's end. `queue_offset` is that of the first entry.
    """
    cdef Py_buffer view, file
    cdef const char* entry
    cdef int64_t start, size
    cdef Py_ssize_t number = 0, count
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(memory, &file, PyBUF_SIMPLE)
    except BaseException:
        PyBuffer_Release(&view)
        raise
    count = view.len // QUEUE_ENTRY_BYTES
    end = min(end, base + file.len)
    while number < count:
        entry = <const char*> view.buf + number * QUEUE_ENTRY_BYTES
        start = <int64_t> get_u64(entry)
        size = <int32_t> get_u32(entry + QUEUE_ENTRY_SIZE_AT)
        if size <= 0 or start < base or start > end - size:
            break
        if not is_own_record(<const char*> file.buf + (start - base), start, size, queue_id, queue_offset + number):
            break
        number += 1
    PyBuffer_Release(&file)
    PyBuffer_Release(&view)
    return number


cdef bint put_record(LogTail log, QueueTail queue, Record* record, int64_t now_ms) noexcept nogil:
    """Append a record to the log and its entry to the queue.

    Return False, with nothing written, if the plain path must append: no disk space is allocated, or a size exceeds its
    limit. Sets log offset, queue offset and size of `record`.
    """
    cdef int64_t properties_size = record.properties_size + record.more_size
    cdef int64_t size = RECORD_FIXED_BYTES + record.body_size + record.topic_size + properties_size
    cdef int64_t offset = queue.max_offset
    cdef char* p
    if log.end + size > log.limit or size > log.max_record_bytes or log.at == NULL:
        return False
    if offset >= queue.reserved or offset >= queue.end or offset < queue.base or queue.at == NULL:
        return False
    if properties_size > MAX_TEXT or record.topic_size > MAX_TOPIC or record.sys_flag & UNQUEUED:
        return False
    if now_ms < log.last_store_ms:
        now_ms = log.last_store_ms
    record.log_offset = log.end
    record.queue_offset = offset
    record.size = size
    p = log.at + (log.end - log.base)
    put_u32(p, <uint32_t> size)
    put_u32(p + RECORD_MAGIC_AT, <uint32_t> RECORD_MAGIC)
    put_u32(p + RECORD_BODY_CRC_AT, crc32_of(record.body, record.body_size) & 0x7FFFFFFF)
    put_u32(p + RECORD_QUEUE_ID_AT, <uint32_t> record.queue_id)
    put_u32(p + RECORD_FLAG_AT, <uint32_t> record.flag)
    put_u64(p + RECORD_QUEUE_OFFSET_AT, offset)
    put_u64(p + RECORD_LOG_OFFSET_AT, log.end)
    put_u32(p + RECORD_SYS_FLAG_AT, <uint32_t> (record.sys_flag & ~HOST_FLAGS))
    put_u64(p + RECORD_BORN_MS_AT, record.born_ms)
    memcpy(p + RECORD_BORN_ADDRESS_AT, record.born_address, IPV4_BYTES)
    put_u64(p + RECORD_STORE_MS_AT, now_ms)
    memcpy(p + RECORD_STORE_ADDRESS_AT, record.store_address, IPV4_BYTES)
    put_u32(p + RECORD_RECONSUME_TIMES_AT, <uint32_t> record.reconsume_times)
    put_u64(p + RECORD_PREPARED_OFFSET_AT, record.prepared_offset)
    put_u32(p + RECORD_BODY_SIZE_AT, <uint32_t> record.body_size)
    p += RECORD_BODY_AT
    memcpy(p, record.body, record.body_size)
    p += record.body_size
    p[0] = <char> record.topic_size
    memcpy(p + 1, record.topic, record.topic_size)
    p += 1 + record.topic_size
    put_u16(p, <unsigned short> properties_size)
    memcpy(p + 2, record.properties, record.properties_size)
    memcpy(p + 2 + record.properties_size, record.more, record.more_size)
    p = queue.at + (offset - queue.base) * QUEUE_ENTRY_BYTES
    put_u64(p, log.end)
    put_u32(p + QUEUE_ENTRY_SIZE_AT, <uint32_t> size)
    put_u64(p + QUEUE_ENTRY_TAGS_CODE_AT, record.tags_code)
    log.end += size
    log.last_store_ms = now_ms
    queue.max_offset = offset + 1
    return True


cdef bint tags_code_of(const char* text, const char* tags, const char* end, int64_t* code) noexcept nogil:
    """Set `code` to the hash of the tags, whose name is at `tags` in the properties from `text` to `end`.

    Return False if the tags do not have their usual form.
    """
    cdef const char* p
    if tags > text and (tags - 1)[0] != PAIRS:
        return False
    tags += TAGS_SIZE + 1
    p = <const char*> memchr(tags, PAIRS, end - tags)
    if p == NULL:
        p = end
    if p == tags or memchr(tags, NAME_VALUE, p - tags) != NULL:
        return False
    code[0] = <int32_t> java_hash_on(0, tags, p)
    return True


def crc32(const unsigned char[::1] data not None):
    """Return the same checksum as `zlib.crc32`."""
    return crc32_of(<const char*> &data[0], data.shape[0]) if data.shape[0] else 0


def java_hash(text: str):
    """Return the same hash as `pyromq.java_hash.java_hash`, computed from UTF-8 as for tags and keys in a log."""
    cdef bytes encoded = text.encode("utf-8", "surrogatepass")
    cdef const char* p = encoded
    return <int32_t> java_hash_on(0, p, p + len(encoded))


def make_ready(int descriptor, memory not None, int64_t position, int64_t size, urgent=b"\0"):
    """See `pyromq.store.disk.LocalDisk`."""
    cdef Py_buffer view, flag
    cdef int error
    PyObject_GetBuffer(urgent, &flag, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        try:
            if position < 0 or position + size > view.len:
                raise ValueError(f"{size} bytes at {position} are not in a file of {view.len}")
            with nogil:
                error = _make_ready(descriptor, <char*> view.buf, position, position + size, <const char*> flag.buf)
        finally:
            PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&flag)
    if error:
        raise OSError(error, os.strerror(error))


cdef int _make_ready(int descriptor, char* file, int64_t position, int64_t end, const char* urgent) noexcept nogil:
    cdef bint can_populate = True
    cdef int64_t piece_end, start, begun = _worked_ns()
    cdef int error
    while position < end:
        piece_end = _piece_end(position, end)
        error = posix_fallocate(descriptor, position, piece_end - position)
        if error == EINTR:
            continue
        if not error:
            error = _write_zeros(descriptor, position, piece_end)
        if error:
            return error
        start = position - position % _page_bytes
        if can_populate and madvise(file + start, piece_end - start, MADV_POPULATE_WRITE) != 0:
            if c_errno == EFAULT:
                return ENOSPC
            can_populate = False  # kernel before Linux 5.14: the first write makes each page
        position = piece_end
        if position < end and not urgent[0]:
            begun = _paused(begun)
    return 0


cdef int _write_zeros(int descriptor, int64_t position, int64_t end) noexcept nogil:
    cdef Py_ssize_t written
    while position < end:
        written = pwrite(descriptor, _ZEROS, end - position, position)
        if written > 0:
            position += written
        elif written == 0 or c_errno != EINTR:
            return ENOSPC if written == 0 else c_errno
    return 0


def write_out(int descriptor, int64_t position, int64_t size):
    """See `pyromq.store.disk.LocalDisk`."""
    cdef int error
    with nogil:
        error = _write_out(descriptor, position, position + size)
    if error and error not in (EINVAL, ENOSYS, ESPIPE):  # these errors mean: not supported for this file
        raise OSError(error, os.strerror(error))


cdef int _write_out(int descriptor, int64_t position, int64_t end) noexcept nogil:
    cdef int64_t piece_end, begun = _worked_ns()
    while position < end:
        piece_end = _piece_end(position, end)
        if sync_file_range(descriptor, position, piece_end - position, SYNC_FILE_RANGE_WRITE) != 0:
            return c_errno
        position = piece_end
        if position < end:
            begun = _paused(begun)
    return 0


cdef inline int64_t _piece_end(int64_t position, int64_t end) noexcept nogil:
    cdef int64_t piece_end = position - position % PIECE + PIECE
    return piece_end if piece_end < end else end


cdef int64_t _paused(int64_t begun) noexcept nogil:
    """Sleep for `PAUSE_NS` if the thread has worked `WORK_NS` since `begun`. Return the beginning of the next period."""
    cdef timespec pause
    if _worked_ns() - begun < WORK_NS:
        return begun
    pause.tv_sec, pause.tv_nsec = 0, PAUSE_NS
    nanosleep(&pause, NULL)
    return _worked_ns()


cdef int64_t _worked_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now)
    return <int64_t> now.tv_sec * 1_000_000_000 + now.tv_nsec
