# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Decodes records to messages, as `pyromq.record` does, and computes Java's string hash, as `pyromq.java_hash` does.

For a damaged or unusual record None is returned: the plain path (the Python code) then reports the fault. No byte
outside a buffer is read: each size in a record is compared with the bytes left before the size is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from pyromq.speedups.constants cimport *
from pyromq.speedups.kernels cimport crc32_of, crc32_setup, get_u16, get_u32, get_u64

cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    const void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    uint32_t PyUnicode_READ(int kind, const void* data, Py_ssize_t index)

cdef extern from "<string.h>" nogil:
    void* memmem(const void* text, size_t size, const void* wanted, size_t wanted_size)

cdef enum:
    MAX_WORDS = 4

crc32_setup()

cdef struct Words:
    int count
    const char* at[MAX_WORDS]
    Py_ssize_t size[MAX_WORDS]


cdef bint find_record(const char* p, Py_ssize_t left, bint check_crc, Record* record) noexcept nogil:
    """Find the parts of the record at `p`. Return False if the `left` bytes at `p` do not begin with an intact record."""
    cdef uint32_t flags
    cdef Py_ssize_t rest
    if left < RECORD_FIXED_BYTES or get_u32(p + RECORD_MAGIC_AT) != <uint32_t> RECORD_MAGIC:
        return False
    record.at = p
    record.size = <int32_t> get_u32(p)
    if record.size > left:
        return False
    flags = get_u32(p + RECORD_SYS_FLAG_AT)
    record.born = p + RECORD_BORN_ADDRESS_AT
    record.born_size = IPV6_BYTES if flags & BORN_HOST_IPV6 else IPV4_BYTES
    record.stored = record.born + record.born_size
    record.store_size = IPV6_BYTES if flags & STORE_HOST_IPV6 else IPV4_BYTES
    record.tried = record.stored + 8 + record.store_size
    record.body = record.tried + 16
    rest = record.size - (record.body - p) - 3  # bytes of body, topic and properties, without their size fields
    if rest < 0:
        return False
    record.body_size = <int32_t> get_u32(record.body - 4)
    if record.body_size < 0 or record.body_size > rest:
        return False
    record.topic = record.body + record.body_size + 1
    record.topic_size = <unsigned char> (record.topic - 1)[0]
    rest -= record.body_size + record.topic_size
    if rest < 0:
        return False
    record.properties = record.topic + record.topic_size + 2
    record.properties_size = <int16_t> get_u16(record.properties - 2)
    if record.properties_size != rest:
        return False
    return not check_crc or crc32_of(record.body, record.body_size) & 0x7FFFFFFF == get_u32(p + RECORD_BODY_CRC_AT)


cdef class RecordDecoder:
    """Decodes records to objects of `message_class`, which takes the fields of `StoredMessage` in their order."""

    cdef object _message_class
    # Parts of the previous record: records of one pull mostly have the same topic and addresses.
    cdef bytes _topic_bytes
    cdef str _topic
    cdef bytes _born_address
    cdef bytes _store_address

    def __init__(self, message_class):
        self._message_class = message_class
        self._topic_bytes = self._born_address = self._store_address = b""
        self._topic = ""

    def decode(self, buffer, Py_ssize_t position, bint check_crc):
        """Return the message of the record at `position`; None if the plain path must decode the record."""
        cdef Py_buffer view
        cdef Record record
        if PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0:
            return None
        try:
            if position < 0 or position > view.len:
                return None
            if not find_record(<const char*> view.buf + position, view.len - position, check_crc, &record):
                return None
            return self._message(&record, "")
        except UnicodeDecodeError:
            return None
        finally:
            PyBuffer_Release(&view)

    def decode_all(self, buffer, bint check_crc, str broker_name):
        """Return the messages of records that lie back to back; None if the plain path must decode them."""
        cdef Py_buffer view
        cdef Record record
        cdef Py_ssize_t position = 0
        cdef list messages = []
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            while position < view.len:
                if not find_record(<const char*> view.buf + position, view.len - position, check_crc, &record):
                    return None
                messages.append(self._message(&record, broker_name))
                position += record.size
            return messages
        except UnicodeDecodeError:
            return None
        finally:
            PyBuffer_Release(&view)

    def decode_holding(self, buffer, tuple words, str broker_name, bytes text=None):
        """Return the messages of those records that contain one of the words, or whose bodies are compressed.

        The records lie back to back. The words are searched in `text`, which has the length of the buffer; without it,
        in the buffer. Return None if the plain path must decode them, for example for more than four
        words, or for an empty word.
        """
        cdef Py_buffer view
        cdef Record record
        cdef Words wanted
        cdef Py_ssize_t count = 0, number
        cdef Py_ssize_t* places
        cdef const char* searched
        cdef list messages = []
        if not 0 < len(words) <= MAX_WORDS:
            return None
        wanted.count = <int> len(words)
        for number in range(wanted.count):
            word = <bytes?> words[number]
            wanted.at[number] = PyBytes_AS_STRING(word)
            wanted.size[number] = PyBytes_GET_SIZE(word)
            if wanted.size[number] == 0:
                return None
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        searched = <const char*> view.buf if text is None else PyBytes_AS_STRING(text)
        places = <Py_ssize_t*> malloc((view.len // RECORD_FIXED_BYTES + 1) * sizeof(Py_ssize_t))
        try:
            if places == NULL:
                raise MemoryError
            if text is not None and PyBytes_GET_SIZE(text) != view.len:
                raise ValueError("the text has another length than the buffer")
            with nogil:
                count = find_holding(<const char*> view.buf, view.len, searched, &wanted, places)
            if count < 0:
                return None
            for number in range(count):
                find_record(<const char*> view.buf + places[number], view.len - places[number], False, &record)
                messages.append(self._message(&record, broker_name))
            return messages
        except UnicodeDecodeError:
            return None
        finally:
            free(places)
            PyBuffer_Release(&view)

    cdef object _message(self, const Record* record, str broker_name):
        if not _is(self._topic_bytes, record.topic, record.topic_size):
            self._topic = PyUnicode_DecodeUTF8(record.topic, record.topic_size, NULL)
            self._topic_bytes = PyBytes_FromStringAndSize(record.topic, record.topic_size)
        if not _is(self._born_address, record.born, record.born_size):
            self._born_address = PyBytes_FromStringAndSize(record.born, record.born_size)
        if not _is(self._store_address, record.stored + 8, record.store_size):
            self._store_address = PyBytes_FromStringAndSize(record.stored + 8, record.store_size)
        return self._message_class(
            self._topic,
            PyBytes_FromStringAndSize(record.body, record.body_size),
            PyUnicode_DecodeUTF8(record.properties, record.properties_size, NULL),
            <int32_t> get_u32(record.at + RECORD_QUEUE_ID_AT),
            <int32_t> get_u32(record.at + RECORD_FLAG_AT),
            <int32_t> get_u32(record.at + RECORD_SYS_FLAG_AT),
            <int64_t> get_u64(record.at + RECORD_BORN_MS_AT),
            self._born_address,
            <int32_t> get_u32(record.tried),
            <int64_t> get_u64(record.tried + 4),
            <int64_t> get_u64(record.at + RECORD_QUEUE_OFFSET_AT),
            <int64_t> get_u64(record.at + RECORD_LOG_OFFSET_AT),
            record.size,
            <int64_t> get_u64(record.stored),
            self._store_address,
            broker_name,
            get_u32(record.at + RECORD_BODY_CRC_AT),
        )


cdef Py_ssize_t find_holding(
    const char* begin, Py_ssize_t size, const char* text, const Words* words, Py_ssize_t* places
) noexcept nogil:
    """Write the positions of records that contain a word or are compressed to `places`. Return their number.

    Words are searched in `text`, which has the same size. -1 if any record is not intact.
    """
    cdef const char* p = begin
    cdef const char* end = begin + size
    cdef const char* at = text  # the same position in the text
    cdef const char* next_at[MAX_WORDS]  # next position of each word in the text; the text's end if there is none
    cdef Record record
    cdef Py_ssize_t count = 0
    cdef int number
    cdef bint holds
    for number in range(words.count):
        next_at[number] = NULL
    while p < end:
        if not find_record(p, end - p, False, &record):
            return -1
        holds = get_u32(p + RECORD_SYS_FLAG_AT) & COMPRESSED
        for number in range(words.count):
            if next_at[number] < at:
                next_at[number] = <const char*> memmem(at, end - p, words.at[number], words.size[number])
                if next_at[number] == NULL:
                    next_at[number] = text + size
            # A word that ends after the record is not in the record; no earlier place of the word exists.
            holds = holds or at + record.size - next_at[number] >= words.size[number]
        if holds:
            places[count] = p - begin
            count += 1
        p += record.size
        at += record.size
    return count


def pass_records(buffer, Py_ssize_t position, Py_ssize_t end, bytes text not None):
    """Return the position after the intact records from `position` to `end` whose properties do not contain a string."""
    cdef Py_buffer view
    cdef Record record
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        while find_record(<const char*> view.buf + position, end - position, False, &record):
            if memmem(
                record.properties, record.properties_size, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
            ) != NULL:
                break
            position += record.size
        return position
    finally:
        PyBuffer_Release(&view)


cdef inline bint _is(bytes known, const char* p, Py_ssize_t size):
    return PyBytes_GET_SIZE(known) == size and memcmp(PyBytes_AS_STRING(known), p, size) == 0


def java_hash(str text not None):
    """Return the hash of Java's `String.hashCode`: 32 bits, signed, over UTF-16 code units."""
    cdef int kind = PyUnicode_KIND(text)
    cdef const void* data = PyUnicode_DATA(text)
    cdef uint32_t value = 0, unit
    cdef Py_ssize_t index
    for index in range(PyUnicode_GET_LENGTH(text)):
        unit = PyUnicode_READ(kind, data, index)
        if unit > 0xFFFF:
            unit -= 0x10000
            value = value * 31 + (0xD800 | unit >> 10)
            unit = 0xDC00 | (unit & 0x3FF)
        value = value * 31 + unit
    return <int32_t> value
