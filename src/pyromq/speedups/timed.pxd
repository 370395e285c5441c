from libc.stdint cimport int64_t, uint32_t

from pyromq.speedups.codec cimport ReplyWriter, Text
from pyromq.speedups.records cimport Counter, LogTail, QueueTail, Record

cdef enum:
    ROOM = 256  # limit of messages in the intake: adding many to buckets together is faster
    WRITTEN = 1024  # bytes of the buffers for added properties and for a recall handle

cdef class BucketTail:
    cdef public int64_t records_end
    cdef public object needed_from
    cdef public bytearray entries
    cdef public bytearray finished
    cdef int put(
        self, int64_t due_ms, uint32_t key_hash, uint32_t topic_hash, int64_t log_offset, int64_t size
    ) except -1

cdef struct Parked:
    int64_t queue_offset
    int64_t log_offset
    int64_t size
    int64_t due_ms
    uint32_t key_hash

cdef class TimerIntake:
    cdef public object refusal
    cdef public int64_t urgent_ms
    cdef int count
    cdef Parked parked[ROOM]
    cdef list topics  # topics of the messages in `parked`, in order
    cdef int put(
        self, int64_t queue_offset, int64_t log_offset, int64_t size, int64_t due_ms, uint32_t key_hash, topic
    ) except -1

cdef class TimedSends:
    cdef str topic
    cdef Counter counter
    cdef ReplyWriter writer
    cdef Text handle
    cdef bint has_stirred  # True if the event loop may have new work
    cdef TimerIntake _intake
    cdef object _find, _limit_ms, _advance_alarm, _file, _writer_for
    cdef bytes _encoded, _words
    cdef const char* _broker_name_between
    cdef Py_ssize_t _broker_name_size
    cdef int64_t _limit
    cdef QueueTail _queue
    cdef char _more[WRITTEN]
    cdef char _handle[WRITTEN]
    cdef int renew(self) except -1
    cdef void begin(self) noexcept
    cdef bint put(self, LogTail log, Record* record, const char* wish, topic, int64_t now_ms) except -1
    cdef bint _is_there(self) except -1
    cdef char* _write_handle(self, const Record* record, int64_t due_ms, const char* key, Py_ssize_t key_size) noexcept
    cdef void _write_more(self, Record* record, int64_t due_ms) noexcept
