# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stores scheduled messages (messages with a delivery time) in the timer topic and adds them to their buckets.

Only usual messages are stored: one delivery time in decimal digits, in the future and within the limit, and one unique
key of letters and digits. All other messages are left to the plain path (the Python code of `broker.delays`).
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from pyromq.speedups.codec cimport ReplyWriter, write_base64, write_number
from pyromq.speedups.constants cimport *
from pyromq.speedups.kernels cimport crc16_of, crc16_setup, crc32_of, crc32_setup, ends_with, put_u16, put_u32, put_u64
from pyromq.speedups.records cimport Counter, LogTail, QueueTail, Record, put_record

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    MAX_DIGITS = 15
    MAX_NAMES = 512  # limit of bytes of topic, broker, cluster and key together: they fit into the buffers


crc16_setup()
crc32_setup()


cdef class BucketTail:
    """See `pyromq.store.timers.timer_bucket`."""

    def add(self, int64_t due_ms, uint32_t key_hash, uint32_t topic_hash, int64_t log_offset, int64_t size):
        self.put(due_ms, key_hash, topic_hash, log_offset, size)

    cdef int put(
        self, int64_t due_ms, uint32_t key_hash, uint32_t topic_hash, int64_t log_offset, int64_t size
    ) except -1:
        cdef Py_ssize_t end = PyByteArray_GET_SIZE(self.entries)
        cdef char* p
        cdef const char* rest
        cdef uint16_t checksum
        PyByteArray_Resize(self.entries, end + TIMER_ENTRY_BYTES)
        p = PyByteArray_AS_STRING(self.entries) + end
        put_u64(p + TIMER_ENTRY_DUE_MS_AT, due_ms)
        put_u32(p + TIMER_ENTRY_KEY_HASH_AT, key_hash)
        put_u32(p + TIMER_ENTRY_TOPIC_HASH_AT, topic_hash)
        put_u64(p + TIMER_ENTRY_LOG_OFFSET_AT, log_offset)
        put_u16(p + TIMER_ENTRY_RECORDS_END_HIGH_AT, <uint16_t> (self.records_end >> 32))
        put_u32(p + TIMER_ENTRY_RECORDS_END_LOW_AT, <uint32_t> self.records_end)
        put_u32(p + TIMER_ENTRY_SIZE_AT, <uint32_t> size)
        rest = p + TIMER_ENTRY_CHECKSUM_AT + 2
        checksum = crc16_of(crc16_of(0, p, TIMER_ENTRY_CHECKSUM_AT), rest, p + TIMER_ENTRY_BYTES - rest)
        put_u16(p + TIMER_ENTRY_CHECKSUM_AT, checksum if checksum else 1)
        self.records_end += size
        if self.needed_from is None:
            self.needed_from = log_offset
        if self.finished is not None:
            self.finished.append(0)
        return 0


cdef class TimerIntake:
    """See `pyromq.broker.delays.timer_index`."""

    def __init__(self):
        self.urgent_ms = LATEST_MS
        self.topics = []

    def __len__(self):
        return self.count

    def add(self, int64_t queue_offset, int64_t log_offset, int64_t size, tuple scheduled):
        due_ms, key_hash, topic = scheduled
        if self.count == ROOM:
            raise IndexError(f"{ROOM} messages already wait to be filed")
        self.put(queue_offset, log_offset, size, due_ms, key_hash, topic)
        return self.count < ROOM

    cdef int put(
        self, int64_t queue_offset, int64_t log_offset, int64_t size, int64_t due_ms, uint32_t key_hash, topic
    ) except -1:
        """Add a message. `count` must be below `ROOM`."""
        cdef Parked* parked = &self.parked[self.count]
        self.topics.append(topic)
        parked.queue_offset = queue_offset
        parked.log_offset = log_offset
        parked.size = size
        parked.due_ms = due_ms
        parked.key_hash = key_hash
        self.count += 1
        return 0

    def continues_at(self, int64_t queue_offset):
        cdef int64_t first = self.parked[0].queue_offset
        return first == queue_offset and self.parked[self.count - 1].queue_offset == queue_offset + self.count - 1

    def clear(self):
        self.count = 0
        self.topics = []

    def file(self, files, *, int64_t near, set unread):
        cdef dict buckets = files.buckets
        cdef dict changed = files.changed
        cdef dict by_topic = {}
        cdef list topics = self.topics
        cdef int number, count = self.count
        cdef int64_t hour
        cdef uint32_t topic_hash = 0
        cdef Parked* parked
        cdef BucketTail bucket
        cdef PyObject* found
        cdef Py_ssize_t size
        cdef const char* name
        topic = None
        self.clear()
        for number in range(count):
            parked = &self.parked[number]
            if topics[number] is not topic:
                topic = topics[number]
                name = PyUnicode_AsUTF8AndSize(topic, &size)
                topic_hash = crc32_of(name, size)
            hour = parked.due_ms // HOUR_MS
            hour_key = hour
            found = PyDict_GetItem(buckets, hour_key)
            bucket = <BucketTail> found if found != NULL else files.make(hour, parked.queue_offset)
            bucket.put(parked.due_ms, parked.key_hash, topic_hash, parked.log_offset, parked.size)
            changed[bucket] = None
            if hour <= near:
                unread.add(hour_key)
            by_topic[topic] = by_topic.get(topic, 0) + 1
        files.count(by_topic)


cdef class TimedSends:
    """Stores scheduled messages in the timer topic.

    `find()` returns queue and counter of the timer topic; None before its first message. `limit_ms()` returns the
    longest delay in ms. `advance_alarm(due time, now)` is called for a message due before `urgent_ms`. `file()` empties the
    intake into the buckets. `writer_for()` returns the writer of replies with a recall handle.
    """

    def __init__(self, TimerIntake intake, str topic, *, find, limit_ms, advance_alarm, file, writer_for, str broker_name):
        self._intake = intake
        self._find = find
        self._limit_ms = limit_ms
        self._advance_alarm = advance_alarm
        self._file = file
        self._writer_for = writer_for
        self.topic = topic
        self._encoded = topic.encode()
        self._words = f" {broker_name} ".encode()
        self._broker_name_between = PyBytes_AS_STRING(self._words)
        self._broker_name_size = PyBytes_GET_SIZE(self._words)
        self._limit = -1
        self._queue = None

    cdef int renew(self) except -1:
        """Get a new reply writer, as the broker's tables have changed."""
        self.writer = self._writer_for()
        return 0

    cdef void begin(self) noexcept:
        """Begin a turn: the limit of the delay is read again, as settings may have changed."""
        self._limit = -1

    cdef bint put(self, LogTail log, Record* record, const char* wish, topic, int64_t now_ms) except -1:
        """Store a scheduled message for `topic` in the timer topic, and set `handle` to its recall handle.

        `record` is the message as sent; `wish` is the end of the name of its delivery time property. Return False, with
        nothing stored, if the plain path must store the message.
        """
        cdef TimerIntake intake = self._intake
        cdef Py_ssize_t key_size = 0
        cdef const char* key
        cdef char* end
        cdef int64_t due_ms = _due_ms(record, wish, now_ms)
        cdef uint32_t key_hash
        if self._limit < 0:
            self._limit = self._limit_ms()
        if due_ms <= now_ms or due_ms - now_ms > self._limit or due_ms >= LATEST_MS or intake.refusal is not None:
            return False
        if record.sys_flag & ROLLBACK or (self._queue is None and not self._is_there()):
            return False
        key = _unique_key(record, &key_size)
        if key == NULL or key_size + record.topic_size + record.more_size + self._broker_name_size > MAX_NAMES:
            return False
        if intake.count == ROOM:
            self.has_stirred = True
            self._file()
        end = self._write_handle(record, due_ms, key, key_size)
        self._write_more(record, due_ms)
        record.topic = PyBytes_AS_STRING(self._encoded)
        record.topic_size = PyBytes_GET_SIZE(self._encoded)
        record.queue_id = 0
        if not put_record(log, self._queue, record, now_ms):
            return False
        key_hash = crc32_of(key, key_size)
        self.handle.at = self._handle
        self.handle.size = end - self._handle
        intake.put(record.queue_offset, record.log_offset, record.size, due_ms, key_hash, topic)
        if due_ms < intake.urgent_ms:
            self.has_stirred = True
            self._advance_alarm(due_ms, now_ms)
        return True

    cdef bint _is_there(self) except -1:
        found = self._find()
        if found is None:
            return False
        self._queue, self.counter = found
        return True

    cdef char* _write_handle(self, const Record* record, int64_t due_ms, const char* key, Py_ssize_t key_size) noexcept:
        """Write the recall handle into `_handle`; return its end. See `remoting.recall_handle`."""
        cdef char words[WRITTEN]
        cdef char* p = _append(words, b"v1 ", 3)
        p = _append(p, record.topic, record.topic_size)
        p = _append(p, self._broker_name_between, self._broker_name_size)
        p = write_number(p, due_ms)
        p[0] = c' '
        p = _append(p + 1, key, key_size)
        return write_base64(words, p - words, self._handle)

    cdef void _write_more(self, Record* record, int64_t due_ms) noexcept:
        """Add due time, real topic and real queue id to the record's properties. See `broker.delays.timer_records`."""
        cdef char* p = _append(self._more, record.more, record.more_size)
        p = write_number(_append_name(p, TIMER_OUT_MS, TIMER_OUT_MS_SIZE), due_ms)
        p = _append(_append_name(p, REAL_TOPIC, REAL_TOPIC_SIZE), record.topic, record.topic_size)
        p = _append_name(p, REAL_QUEUE_ID, REAL_QUEUE_ID_SIZE)
        p = write_number(p, record.queue_id)
        record.more = self._more
        record.more_size = p - self._more


cdef inline char* _append(char* p, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(p, text, size)
    return p + size


cdef inline char* _append_name(char* p, const char* name, Py_ssize_t size) noexcept nogil:
    """Write a separator and the name of a property; return the address of the value."""
    p[0] = PAIRS
    p = _append(p + 1, name, size)
    p[0] = NAME_VALUE
    return p + 1


cdef inline bint _is_name(const char* text, const char* end, const char* name, Py_ssize_t size) noexcept nogil:
    """Return True if the property whose name ends at `end` has exactly this name."""
    cdef const char* start = end - size
    return start >= text and memcmp(start, name, size) == 0 and (start == text or start[-1] == PAIRS)


cdef int64_t _due_ms(const Record* record, const char* wish, int64_t now_ms) noexcept nogil:
    """Return the due time (ms since 1970) of a delivery time property.

    Returns -1 for another property, and for other characters than digits.
    """
    cdef const char* text = record.properties
    cdef const char* end = text + record.properties_size
    cdef const char* p = wish + 1
    cdef int64_t value = 0
    while p < end and c'0' <= p[0] <= c'9':
        if p - wish > MAX_DIGITS:
            return -1
        value = value * 10 + (p[0] - c'0')
        p += 1
    if p == wish + 1 or (p < end and p[0] != PAIRS):
        return -1
    if _is_name(text, wish, TIMER_DELIVER_MS, TIMER_DELIVER_MS_SIZE):
        return value
    if _is_name(text, wish, TIMER_DELAY_MS, TIMER_DELAY_MS_SIZE):
        return now_ms + value
    if _is_name(text, wish, TIMER_DELAY_SECONDS, TIMER_DELAY_SECONDS_SIZE):
        return now_ms + value * 1000
    return -1


cdef const char* _unique_key(const Record* record, Py_ssize_t* size) noexcept nogil:
    """Return the unique key if it consists of letters and digits. NULL for no key, several keys, or other characters.

    NULL also if the message was scheduled before, and delivered.
    """
    cdef const char* text = record.properties
    cdef const char* end = text + record.properties_size
    cdef const char* p = text
    cdef const char* key = NULL
    cdef const char* q
    while True:
        p = <const char*> memchr(p, NAME_VALUE, end - p)
        if p == NULL:
            break
        if ends_with(text, p, UNIQUE_KEY, UNIQUE_KEY_SIZE):
            if key != NULL or not _is_name(text, p, UNIQUE_KEY, UNIQUE_KEY_SIZE):
                return NULL
            key = p + 1
        elif ends_with(text, p, TIMER_OUT_MS, TIMER_OUT_MS_SIZE):
            return NULL
        p += 1
    if key == NULL:
        return NULL
    q = key
    while q < end and (c'0' <= q[0] <= c'9' or c'A' <= q[0] <= c'Z' or c'a' <= q[0] <= c'z'):
        q += 1
    if q == key or (q < end and q[0] != PAIRS):
        return NULL
    size[0] = q - key
    return key
