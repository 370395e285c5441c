# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writes popped records as messages of a ReceiveMessage call: gRPC's prefix and a `ReceiveMessageResponse` for each.

`proxy.received_messages` does the same with protobuf, also for the records that this module leaves to Python. A message
is written from its end to its beginning, because the length of each part precedes the part.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from pyromq.speedups.constants cimport *
from pyromq.speedups.decoding cimport Record, find_record
from pyromq.speedups.kernels cimport get_u32, get_u64, put_u32, utf8_end

cdef extern from "<string.h>" nogil:
    void* memrchr(const void* text, int wanted, size_t size)

cdef enum:  # protobuf's field numbers
    MESSAGE = 2
    TOPIC = 1, TOPIC_NAME = 2, USER_PROPERTIES = 2, SYSTEM_PROPERTIES = 3, BODY = 4
    TAG = 1, KEYS_FIELD = 2, MESSAGE_ID = 3, DIGEST = 4, ENCODING = 5, KIND = 6, BORN = 7, BORN_HOST = 8, STORED = 9
    STORE_HOST = 10, DUE = 11, HANDLE = 12, QUEUE_ID = 13, QUEUE_OFFSET = 14, INVISIBLE = 15, ATTEMPT = 16
    GROUP = 17, TRACE_CONTEXT = 18
    FIRST = 1, SECOND = 2  # name and value of a property; seconds and nanoseconds of a time; kind and text of a digest

cdef enum:
    MD5 = 2
    IDENTITY = 1, GZIP = 2
    NORMAL = 1, FIFO = 2, DELAYED = 3
    TEXT = 2  # protobuf's wire type of strings and parts; that of numbers is 0
    PREFIX_BYTES = 5
    MAX_FIELD = 32
    MAX_DIGITS = 15  # of a delivery time
    FIXED_BYTES = 1024  # limit of a message's bytes besides its record and the beginning of the receipt handle
    MAX_TIMES = 4  # limit of a message's bytes for each byte of a record: 4 bytes of a property become 12

cdef struct Text:
    const char* at
    Py_ssize_t size


cdef class ReceivedWriter:
    """Writes the records of a response to a pop.

    `meanings` has the field of the system properties that shows a property: 0 for a hidden property, -1 if the record
    is left to Python. `md5` returns a body's MD5 as a string, `format_address` an address as a string.
    """

    cdef dict _meanings
    cdef object _md5
    cdef object _format_address
    # Of the previous record: the records of one pop mostly have the same addresses.
    cdef bytes _born_address
    cdef bytes _born_host
    cdef bytes _store_address
    cdef bytes _store_host

    def __init__(self, dict meanings not None, md5, format_address):
        self._meanings = meanings
        self._md5 = md5
        self._format_address = format_address
        self._born_address = self._store_address = b""

    def write(self, bytes records not None, Py_ssize_t position, Py_ssize_t most, bytes topic not None,
              dict handles not None, int64_t invisible_ms):
        """Return the messages of the records from `position` on, and the position after the last one.

        `handles` has the beginning of the receipt handles of each queue, up to the offset. Ends when the messages have
        `most` bytes, and before a record that is left to Python.
        """
        cdef Record record
        cdef list written = []
        cdef Py_ssize_t size = 0, end = PyBytes_GET_SIZE(records)
        cdef const char* at = PyBytes_AS_STRING(records)
        cdef bytes message
        while size < most and position < end and find_record(at + position, end - position, False, &record):
            message = self._message(&record, topic, handles, invisible_ms)
            if message is None:
                break
            written.append(message)
            size += PyBytes_GET_SIZE(message)
            position += record.size
        return b"".join(written), position

    cdef bytes _message(self, const Record* record, bytes topic, dict handles, int64_t invisible_ms):
        """Return the message of a record; None if the record is left to Python."""
        cdef bytes handle = handles.get(<int32_t> get_u32(record.at + RECORD_QUEUE_ID_AT))
        cdef const char* end = record.properties + record.properties_size
        cdef Py_ssize_t room
        cdef char* begin
        cdef char* p
        if (
            handle is None
            or not is_same(topic, record.topic, record.topic_size)
            or get_u32(record.tried)
            or utf8_end(record.properties, end) != end
            or <int64_t> (get_u64(record.at + RECORD_QUEUE_OFFSET_AT) | get_u64(record.at + RECORD_LOG_OFFSET_AT)) < 0
            or <int64_t> (get_u64(record.at + RECORD_BORN_MS_AT) | get_u64(record.stored)) < 0
        ):
            return None
        self._find_hosts(record)
        room = record.size * MAX_TIMES + PyBytes_GET_SIZE(handle) + FIXED_BYTES
        begin = <char*> malloc(room)
        if begin == NULL:
            raise MemoryError
        try:
            p = self._write(begin + room, record, handle, invisible_ms)
            return None if p == NULL else PyBytes_FromStringAndSize(p, begin + room - p)
        finally:
            free(begin)

    cdef char* _write(self, char* end, const Record* record, bytes handle, int64_t invisible_ms) except? NULL:
        """Write a message that ends at `end`. Return its beginning, or NULL if the record is left to Python."""
        cdef bint is_compressed = (get_u32(record.at + RECORD_SYS_FLAG_AT) & COMPRESSED) != 0
        cdef Text found[MAX_FIELD]
        cdef int64_t due_ms
        cdef char* system_end
        cdef char* p
        memset(found, 0, sizeof(found))
        if is_compressed and not (record.body_size > 1 and record.body[0] == 0x1F and record.body[1] == <char> 0x8B):
            return NULL
        p = text(end, BODY, record.body, record.body_size)
        p = system_end = self._user_properties(p, record, found)
        if p == NULL or found[MESSAGE_ID].size == 0:
            return NULL
        p = known(known(p, TRACE_CONTEXT, found), GROUP, found)
        p = number(p, ATTEMPT, 1)
        p = time(p, INVISIBLE, invisible_ms)
        p = number(p, QUEUE_OFFSET, <int64_t> get_u64(record.at + RECORD_QUEUE_OFFSET_AT))
        p = number(p, QUEUE_ID, <int32_t> get_u32(record.at + RECORD_QUEUE_ID_AT))
        p = receipt_handle(p, record, handle)
        due_ms = number_of(&found[DUE])
        if due_ms >= 0:
            p = time(p, DUE, due_ms)
        p = bytes_of(p, STORE_HOST, self._store_host)
        p = time(p, STORED, <int64_t> get_u64(record.stored))
        p = known(p, BORN_HOST, found) if found[BORN_HOST].size else bytes_of(p, BORN_HOST, self._born_host)
        p = time(p, BORN, <int64_t> get_u64(record.at + RECORD_BORN_MS_AT))
        p = number(p, KIND, DELAYED if found[KIND].size or found[DUE].size else FIFO if found[GROUP].size else NORMAL)
        p = number(p, ENCODING, GZIP if is_compressed else IDENTITY)
        p = self._digest(p, record)
        p = known(p, MESSAGE_ID, found)
        if found[KEYS_FIELD].size:
            for key in reversed(found[KEYS_FIELD].at[:found[KEYS_FIELD].size].decode().split()):
                p = bytes_of(p, KEYS_FIELD, key.encode())
        p = part(known(p, TAG, found), SYSTEM_PROPERTIES, system_end)
        p = part(text(p, TOPIC_NAME, record.topic, record.topic_size), TOPIC, p)
        p = part(p, MESSAGE, end) - PREFIX_BYTES
        p[0] = 0  # not compressed
        put_u32(p + 1, <unsigned int> (end - p - PREFIX_BYTES))
        return p

    cdef char* _user_properties(self, char* p, const Record* record, Text* found) except? NULL:
        """Write the user properties, and find the others. Of equal names, the last counts: the walk goes backwards."""
        cdef const char* end = record.properties + record.properties_size
        cdef const char* begin
        cdef const char* separator
        cdef char* pair_end
        cdef int meaning
        while end > record.properties:
            begin = <const char*> memrchr(record.properties, PAIRS, end - record.properties)
            begin = record.properties if begin == NULL else begin + 1
            separator = <const char*> memchr(begin, NAME_VALUE, end - begin)
            if separator != NULL and separator > begin and separator + 1 < end:
                value = self._meanings.get(PyBytes_FromStringAndSize(begin, separator - begin))
                if value is None:
                    pair_end = p
                    p = text(p, SECOND, separator + 1, end - separator - 1)
                    p = part(text(p, FIRST, begin, separator - begin), USER_PROPERTIES, pair_end)
                else:
                    meaning = value
                    if meaning < 0 or meaning >= MAX_FIELD:
                        return NULL
                    if found[meaning].size == 0:
                        found[meaning].at = separator + 1
                        found[meaning].size = end - separator - 1
            end = begin - 1
        return p

    cdef char* _digest(self, char* p, const Record* record) except NULL:
        cdef bytes checksum = self._md5(PyBytes_FromStringAndSize(record.body, record.body_size))
        cdef char* end = p
        return part(number(bytes_of(p, SECOND, checksum), FIRST, MD5), DIGEST, end)

    cdef int _find_hosts(self, const Record* record) except -1:
        """Format a record's addresses."""
        if not is_same(self._born_address, record.born, record.born_size):
            self._born_address = record.born[: record.born_size]
            self._born_host = self._format_address(self._born_address).encode()
        if not is_same(self._store_address, record.stored + 8, record.store_size):
            self._store_address = (record.stored + 8)[: record.store_size]
            self._store_host = self._format_address(self._store_address).encode()
        return 0


cdef inline bint is_same(bytes known, const char* at, Py_ssize_t size):
    return PyBytes_GET_SIZE(known) == size and memcmp(PyBytes_AS_STRING(known), at, size) == 0

cdef inline char* varint(char* p, uint64_t value) noexcept nogil:
    """Write a number that ends at `p`. Return its beginning, like the next functions."""
    cdef uint64_t rest = value >> 7
    cdef char* begin = p - 1
    cdef char* at
    while rest:
        begin -= 1
        rest >>= 7
    at = begin
    while value > 0x7F:
        at[0] = <char> (value & 0x7F | 0x80)
        value >>= 7
        at += 1
    at[0] = <char> value
    return begin

cdef inline char* number(char* p, int field, int64_t value) noexcept nogil:
    return varint(varint(p, <uint64_t> value), field << 3)

cdef inline char* part(char* p, int field, const char* end) noexcept nogil:
    """Write what precedes a part that begins at `p` and ends at `end`."""
    return varint(varint(p, end - p), field << 3 | TEXT)

cdef inline char* text(char* p, int field, const char* at, Py_ssize_t size) noexcept nogil:
    memcpy(p - size, at, size)
    return part(p - size, field, p)

cdef inline char* known(char* p, int field, const Text* found) noexcept nogil:
    return text(p, field, found[field].at, found[field].size) if found[field].size else p

cdef inline char* bytes_of(char* p, int field, bytes value):
    return text(p, field, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))

cdef inline char* time(char* p, int field, int64_t ms) noexcept nogil:
    return part(number(number(p, SECOND, ms % 1000 * 1_000_000), FIRST, ms // 1000), field, p)

cdef inline char* decimal(char* p, uint64_t value) noexcept nogil:
    while True:
        p -= 1
        p[0] = <char> (48 + value % 10)
        value //= 10
        if value == 0:
            return p

cdef inline char* receipt_handle(char* p, const Record* record, bytes begin):
    cdef char* end = p
    p = decimal(p, get_u64(record.at + RECORD_LOG_OFFSET_AT)) - 1
    p[0] = 32
    p = decimal(p, get_u64(record.at + RECORD_QUEUE_OFFSET_AT)) - PyBytes_GET_SIZE(begin)
    memcpy(p, PyBytes_AS_STRING(begin), PyBytes_GET_SIZE(begin))
    return part(p, HANDLE, end)

cdef inline int64_t number_of(const Text* digits) noexcept nogil:
    """Return a number of at most 15 digits; -1 for any other string."""
    cdef int64_t value = 0
    cdef Py_ssize_t at
    if not 0 < digits.size <= MAX_DIGITS:
        return -1
    for at in range(digits.size):
        if not 48 <= digits.at[at] <= 57:
            return -1
        value = value * 10 + digits.at[at] - 48
    return value
