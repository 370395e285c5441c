from libc.stdint cimport int64_t

from pyromq.speedups.codec cimport Header, HeaderReader, ReplyWriter
from pyromq.speedups.fast_path cimport FastGuard, FastHandler, Passed
from pyromq.speedups.records cimport Counter, LogTail, QueueTail

cdef enum:
    MAX_CODES = 16

cdef class TagCodes:
    cdef int64_t _codes[MAX_CODES]
    cdef int count  # -1: every message is accepted
    cdef bint accept(self, int64_t code) noexcept nogil

cdef class Reads:
    cdef LogTail _log
    cdef object _is_loaded, _segment_of
    cdef object _older  # mapped memory of an older log file, kept until the end of the turn
    cdef const char* _older_at
    cdef int64_t _older_base, _older_end
    cdef int64_t _max_bytes, _max_count, _bulk_bytes, _bulk_count, _scanned, _recent, _warm
    # The last scan.
    cdef int64_t scanned, taken, total, _first
    cdef TagCodes _codes
    cdef object _content
    cdef const char* _entries
    cdef const char* _at
    cdef int64_t _base
    cdef int64_t end_of(self, QueueTail queue) except -1
    cdef bint scan(
        self, QueueTail queue, TagCodes codes, int64_t queue_id, int64_t offset, int64_t count, int64_t max_bytes
    ) except -1
    cdef char* copy(self, char* target) noexcept
    cdef int offsets(self, int64_t* found) noexcept
    cdef int release(self) except -1
    cdef bint _has_older(self, int64_t offset) except -1

cdef class ReadPlan:
    cdef TagCodes codes
    cdef Counter counter
    cdef bint holds(self) except -1

cdef class ReadHandler(FastHandler):
    cdef HeaderReader _reader
    cdef Reads _reads
    cdef ReplyWriter _writer
    cdef object _plan_for, _version, _seen
    cdef dict _plans
    cdef Counter _total
    cdef Header _header
    cdef FastGuard _guard  # None if permissions are off
    cdef Passed _passed
    cdef ReadPlan plan_of(self, const int* numbers, int count)
    cdef int count_read(self, ReadPlan plan) except -1
