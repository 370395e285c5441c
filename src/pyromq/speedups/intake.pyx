# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Enters records of a master's log, which are already in the mapped file, into their queues.

Only ordinary records are entered: their queues exist, and have disk space for the entry. See `pyromq.store.log_intake`.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memchr

from pyromq.speedups.constants cimport *
from pyromq.speedups.decoding cimport Record, find_record
from pyromq.speedups.kernels cimport crc32_setup, ends_with, get_u32, get_u64, is_same, put_u32, put_u64, utf8_end
from pyromq.speedups.records cimport LogTail, QueueTail, tags_code_of

crc32_setup()

cdef enum:
    BLANK_BYTES = 8  # least size of the blank record at the end of a file


cdef class RecordIntake:
    """Enters records into the queues of `by_topic`, but none of the topics in `followers`, nor of topic `left_out`."""

    cdef dict _by_topic, _followers
    cdef str _left_out

    def __init__(self, dict by_topic not None, dict followers not None, str left_out not None):
        self._by_topic = by_topic
        self._followers = followers
        self._left_out = left_out

    def take(self, LogTail log not None, int64_t written_end, int64_t file_end):
        """Move the log's end over ordinary records, up to the first other one or to log offset `written_end`.

        The file ends at log offset `file_end`. Return the visited queues, each with its previous end.
        """
        cdef Record record
        cdef dict queues = None, before = {}
        cdef QueueTail queue = None
        cdef const char* topic = NULL
        cdef Py_ssize_t topic_size = 0
        cdef int64_t queue_id = -1, tags_code, store_ms
        cdef const char* p
        cdef char* entry
        if log.at == NULL:
            return before
        while True:
            p = log.at + (log.end - log.base)
            if not find_record(p, written_end - log.end, True, &record) or not _is_ordinary(p, &record, log.end):
                break
            if log.end + record.size > file_end - BLANK_BYTES:
                break
            if topic == NULL or topic_size != record.topic_size or not is_same(topic, record.topic, topic_size):
                queues = self._queues_of(&record)
                queue = None
                topic, topic_size = record.topic, record.topic_size
                if queues is None:
                    break
            if queue is None or queue_id != <int32_t> get_u32(p + RECORD_QUEUE_ID_AT):
                queue_id = <int32_t> get_u32(p + RECORD_QUEUE_ID_AT)
                queue = queues.get(queue_id)
                if queue is None:
                    break
                before.setdefault(queue, queue.max_offset)
            if queue.at == NULL or not queue.base <= queue.max_offset < queue.end:
                break
            if <int64_t> get_u64(p + RECORD_QUEUE_OFFSET_AT) != queue.max_offset:
                break
            if not _tags_code(record.properties, record.properties_size, &tags_code):
                break
            entry = queue.at + (queue.max_offset - queue.base) * QUEUE_ENTRY_BYTES
            put_u64(entry, log.end)
            put_u32(entry + QUEUE_ENTRY_SIZE_AT, <uint32_t> record.size)
            put_u64(entry + QUEUE_ENTRY_TAGS_CODE_AT, tags_code)
            store_ms = <int64_t> get_u64(record.stored)
            log.last_store_ms = max(log.last_store_ms, store_ms)
            log.end += record.size
            queue.max_offset += 1
        return before

    cdef dict _queues_of(self, const Record* record):
        """Return the queues of a record's topic; None if the plain path must enter the record."""
        cdef str topic
        if utf8_end(record.topic, record.topic + record.topic_size) != record.topic + record.topic_size:
            return None
        topic = record.topic[: record.topic_size].decode("utf-8")
        return None if topic in self._followers or topic == self._left_out else self._by_topic.get(topic)


cdef inline bint _is_ordinary(const char* p, const Record* record, int64_t log_offset) noexcept nogil:
    return (
        <int64_t> get_u64(p + RECORD_LOG_OFFSET_AT) == log_offset
        and not get_u32(p + RECORD_SYS_FLAG_AT) & UNQUEUED
        and utf8_end(record.properties, record.properties + record.properties_size)
        == record.properties + record.properties_size
    )


cdef bint _tags_code(const char* text, Py_ssize_t size, int64_t* code) noexcept nogil:
    """Set `code` to the tags code of properties. Return False if the tags do not have their usual form."""
    cdef const char* end = text + size
    cdef const char* p = text
    cdef const char* tags = NULL
    code[0] = 0
    while True:
        p = <const char*> memchr(p, NAME_VALUE, end - p)
        if p == NULL:
            return tags == NULL or tags_code_of(text, tags, end, code)
        if ends_with(text, p, TAGS, TAGS_SIZE):
            tags = p - TAGS_SIZE
        p += 1
