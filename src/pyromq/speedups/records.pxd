from libc.stdint cimport int64_t, uint32_t

cdef class Mapped:
    cdef char* at
    cdef object _memory

cdef class LogTail(Mapped):
    cdef public int64_t end
    cdef public int64_t readable_to
    cdef public int64_t last_store_ms
    cdef public int64_t base
    cdef public int64_t limit
    cdef public int64_t max_record_bytes

cdef class QueueTail(Mapped):
    cdef public int64_t min_offset
    cdef public int64_t max_offset
    cdef public int64_t unverified_end
    cdef public int64_t reserved
    cdef public int64_t base
    cdef public int64_t end

cdef class Counter:
    cdef public int64_t times
    cdef public int64_t count
    cdef public int64_t size

cdef struct Record:  # a record with IPv4 addresses; the stored properties are `properties` followed by `more`
    const char* body
    Py_ssize_t body_size
    const char* topic
    Py_ssize_t topic_size
    const char* properties
    Py_ssize_t properties_size
    const char* more
    Py_ssize_t more_size
    int queue_id
    int flag
    int sys_flag
    int reconsume_times
    int64_t born_ms
    const char* born_address
    const char* store_address
    int64_t prepared_offset
    int64_t tags_code
    int64_t log_offset  # `put_record` sets log_offset, queue_offset and size
    int64_t queue_offset
    int64_t size

cdef bint is_own_record(
    const char* p, int64_t log_offset, int64_t size, int64_t queue_id, int64_t queue_offset
) noexcept nogil
cdef bint put_record(LogTail log, QueueTail queue, Record* record, int64_t now_ms) noexcept nogil
cdef bint tags_code_of(const char* text, const char* tags, const char* end, int64_t* code) noexcept nogil
