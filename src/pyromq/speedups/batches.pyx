# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writes the members (messages) of a batch to log and queue without message objects; makes a batch from columns.

All members are checked before one is written: lengths, UTF-8, and no property that asks for a delay or a transaction.
Unusual batches are left to the plain path (the Python code), which reports the fault.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy, memset

from pyromq.speedups.codec cimport write_hex
from pyromq.speedups.constants cimport *
from pyromq.speedups.kernels cimport crc32_of, crc32_setup, ends_with, get_u16, get_u32, put_u16, put_u32, put_u64, utf8_end
from pyromq.speedups.records cimport LogTail, QueueTail, tags_code_of

cdef extern from *:
    """
    #if defined(__GLIBC__)
    #include <malloc.h>
    static int pyromq_keep_memory(int most) { return mallopt(M_MMAP_THRESHOLD, most / 2) && mallopt(M_TRIM_THRESHOLD, most); }
    #else
    static int pyromq_keep_memory(int most) { return 0; }
    #endif
    """
    int pyromq_keep_memory(int most)

crc32_setup()


cdef struct Member:
    const char* body
    const char* text
    int64_t tags_code
    int32_t body_size
    int32_t text_size
    int32_t size  # bytes of the record, without the topic
    int32_t flag


def read_members(bytes body not None, bytes more not None):
    """Return the members of a batch body; None if the plain path (the Python code) must store the batch.

    `more` are properties that `append` writes after each member's own properties.
    """
    cdef Members members = Members.__new__(Members)
    members._body = body
    members._more = more
    return members if members._read() and members.count else None


def keep_memory(int most):
    """Let the process keep up to `most` freed bytes. Return True if the C library supports that.

    Otherwise the system must provide new pages for each batch, which takes half of a broker's time for 1 MiB batches.
    """
    return bool(pyromq_keep_memory(most))


def write_members(flags not None, bodies not None, texts not None, Py_ssize_t first, Py_ssize_t last):
    """Return the body of a batch with the messages from number `first` up to, not including, `last`.

    `flags` is a buffer with an int32 per message. `bodies` and `texts` (properties) are pairs of buffers: the int32
    positions where the first value begins and where each value ends, and the bytes of all values. Raises `ValueError`
    if positions and bytes do not fit together.
    """
    cdef Column flag_column = Column.__new__(Column, flags, None)
    cdef Column body_column = Column.__new__(Column, *bodies)
    cdef Column text_column = Column.__new__(Column, *texts)
    cdef Py_ssize_t size = body_column.size_of(first, last) + text_column.size_of(first, last)
    cdef const int32_t* body_ends = <const int32_t*> body_column.ends.buf
    cdef const int32_t* text_ends = <const int32_t*> text_column.ends.buf
    cdef Py_ssize_t number, body_size, text_size
    cdef bytes made
    cdef char* p
    if flag_column.count < last or text_column.longest(first, last) > MAX_TEXT:
        raise ValueError("too few flags, or strings that are too long")
    made = PyBytes_FromStringAndSize(NULL, size + (last - first) * (MEMBER_BYTES + 2))
    p = PyBytes_AS_STRING(made)
    for number in range(first, last):
        body_size = body_ends[number + 1] - body_ends[number]
        text_size = text_ends[number + 1] - text_ends[number]
        put_u32(p, <uint32_t> (MEMBER_BYTES + body_size + 2 + text_size))
        memset(p + MEMBER_MAGIC_AT, 0, MEMBER_FLAG_AT - MEMBER_MAGIC_AT)
        put_u32(p + MEMBER_FLAG_AT, <uint32_t> (<const int32_t*> flag_column.ends.buf)[number])
        put_u32(p + MEMBER_BODY_SIZE_AT, <uint32_t> body_size)
        p += MEMBER_BYTES
        memcpy(p, <const char*> body_column.content.buf + body_ends[number], body_size)
        p += body_size
        put_u16(p, <unsigned short> text_size)
        memcpy(p + 2, <const char*> text_column.content.buf + text_ends[number], text_size)
        p += 2 + text_size
    return made


cdef class Column:
    """The values of one column, not copied: `ends` are the positions where values end, `content` their bytes."""

    cdef Py_buffer ends, content
    cdef Py_ssize_t count  # number of positions in `ends`

    def __cinit__(self, ends, content):
        PyObject_GetBuffer(ends, &self.ends, PyBUF_SIMPLE)
        self.count = self.ends.len // sizeof(int32_t)
        if content is not None:
            PyObject_GetBuffer(content, &self.content, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.ends)
        PyBuffer_Release(&self.content)

    cdef Py_ssize_t size_of(self, Py_ssize_t first, Py_ssize_t last) except -1:
        """Return the bytes of values `first` to `last`. Raises `ValueError` if a position is outside of the bytes."""
        cdef const int32_t* ends = <const int32_t*> self.ends.buf
        if not 0 <= first <= last < self.count or ends[first] < 0 or ends[last] > self.content.len:
            raise ValueError("values end outside of their bytes")
        if self.longest(first, last) < 0:
            raise ValueError("values end before they begin")
        return ends[last] - ends[first]

    cdef Py_ssize_t longest(self, Py_ssize_t first, Py_ssize_t last) noexcept:
        """Return the size of the longest of values `first` to `last`; -1 if a value ends before it begins."""
        cdef const int32_t* ends = <const int32_t*> self.ends.buf
        cdef Py_ssize_t number, most = 0
        for number in range(first, last):
            if ends[number + 1] < ends[number]:
                return -1
            most = max(most, <Py_ssize_t> ends[number + 1] - ends[number])
        return most


cdef class Members:
    """The members of a batch. Each is valid, and has no delay, delivery time or transaction."""

    cdef readonly Py_ssize_t count
    cdef bytes _body, _more
    cdef Member* _at
    cdef Py_ssize_t _room

    def __cinit__(self):
        self._at = NULL
        self._room = self.count = 0

    def __dealloc__(self):
        free(self._at)

    cdef bint _read(self) except -1:
        cdef const char* p = PyBytes_AS_STRING(self._body)
        cdef const char* end = p + PyBytes_GET_SIZE(self._body)
        cdef Py_ssize_t more_size = PyBytes_GET_SIZE(self._more)
        cdef int64_t size, body_size, text_size, whole
        cdef Member* member
        if more_size > MAX_TEXT or not _asks_nothing(PyBytes_AS_STRING(self._more), more_size, NULL):
            return False
        while p < end:
            if end - p < MEMBER_BYTES + 2:
                return False
            size = <int32_t> get_u32(p)
            body_size = <int32_t> get_u32(p + MEMBER_BODY_SIZE_AT)
            if body_size <= 0 or size > end - p or MEMBER_BYTES + body_size + 2 > size:
                return False
            text_size = get_u16(p + MEMBER_BYTES + body_size)
            if text_size > MAX_TEXT or MEMBER_BYTES + body_size + 2 + text_size != size:
                return False
            if self.count == self._room:
                self._grow(PyBytes_GET_SIZE(self._body) // size)
            member = &self._at[self.count]
            member.flag = <int32_t> get_u32(p + MEMBER_FLAG_AT)
            member.body = p + MEMBER_BYTES
            member.body_size = <int32_t> body_size
            member.text = member.body + body_size + 2
            member.text_size = <int32_t> text_size
            member.tags_code = 0
            whole = text_size + more_size
            if text_size and member.text[text_size - 1] != PAIRS:
                whole += 1
            if whole > MAX_TEXT or utf8_end(member.text, member.text + text_size) != member.text + text_size:
                return False
            if not _asks_nothing(member.text, text_size, &member.tags_code):
                return False
            member.size = <int32_t> (RECORD_FIXED_BYTES + body_size + whole)
            self.count += 1
            p += size
        return True

    cdef int _grow(self, Py_ssize_t guess) except -1:
        cdef Py_ssize_t room = max(2 * self._room, guess + 1)
        cdef Member* at = <Member*> realloc(self._at, room * sizeof(Member))
        if at == NULL:
            raise MemoryError
        self._at = at
        self._room = room
        return 0

    @property
    def first_text(self):
        """The property text of the first member."""
        return self._at[0].text[: self._at[0].text_size].decode("utf-8")

    def next_slice(self, Py_ssize_t first, Py_ssize_t most, int64_t max_bytes):
        """Return the number of members of the next slice: up to `most`, until their records have `max_bytes`."""
        cdef Py_ssize_t number = first
        cdef int64_t size = 0
        while number < self.count and number - first < most and size < max_bytes:
            size += self._at[number].size
            number += 1
        return number - first

    def record_bytes(self, Py_ssize_t first, Py_ssize_t count, Py_ssize_t topic_size):
        """Return the size in the log of the records of `count` members from `first` on, in bytes."""
        cdef Py_ssize_t number
        cdef int64_t size = count * topic_size
        for number in range(first, first + count):
            size += self._at[number].size
        return size

    def append(
        self, LogTail log not None, Py_ssize_t first, Py_ssize_t count, bytes topic not None, *, int32_t queue_id,
        int64_t queue_offset, int32_t sys_flag, int64_t born_ms, bytes born_address not None, int64_t now_ms,
        bytes store_address not None, int32_t reconsume_times, int64_t prepared_offset
    ):
        """Append the records of `count` members to the log. Return False, with nothing written, if this is impossible.

        The log must have space for the records. Raises `OverflowError` for a number that exceeds its field in a record.
        """
        cdef char head[RECORD_BODY_AT]
        cdef Py_ssize_t number, topic_size = PyBytes_GET_SIZE(topic)
        cdef const char* topic_at = PyBytes_AS_STRING(topic)
        cdef const char* more = PyBytes_AS_STRING(self._more)
        cdef Py_ssize_t more_size = PyBytes_GET_SIZE(self._more)
        cdef int64_t end = log.end
        cdef char* p
        if PyBytes_GET_SIZE(born_address) != IPV4_BYTES or PyBytes_GET_SIZE(store_address) != IPV4_BYTES or topic_size > MAX_TOPIC:
            return False
        if sys_flag & UNQUEUED or log.at == NULL or first < 0 or first + count > self.count:
            return False
        if end + <int64_t> self.record_bytes(first, count, topic_size) > log.limit:
            return False
        put_u32(head + RECORD_MAGIC_AT, <uint32_t> RECORD_MAGIC)
        put_u32(head + RECORD_QUEUE_ID_AT, <uint32_t> queue_id)
        put_u32(head + RECORD_SYS_FLAG_AT, <uint32_t> (sys_flag & ~HOST_FLAGS))
        put_u64(head + RECORD_BORN_MS_AT, born_ms)
        memcpy(head + RECORD_BORN_ADDRESS_AT, PyBytes_AS_STRING(born_address), IPV4_BYTES)
        put_u64(head + RECORD_STORE_MS_AT, now_ms)
        memcpy(head + RECORD_STORE_ADDRESS_AT, PyBytes_AS_STRING(store_address), IPV4_BYTES)
        put_u32(head + RECORD_RECONSUME_TIMES_AT, <uint32_t> reconsume_times)
        put_u64(head + RECORD_PREPARED_OFFSET_AT, prepared_offset)
        p = log.at + (end - log.base)
        for number in range(first, first + count):
            p = _write(&self._at[number], p, head, topic_at, topic_size, more, more_size, queue_offset, end)
            end += self._at[number].size + topic_size
            queue_offset += 1
        log.end = end
        log.last_store_ms = now_ms
        return True

    def enter(self, QueueTail queue not None, Py_ssize_t first, Py_ssize_t count, Py_ssize_t topic_size, int64_t log_offset):
        """Append the queue entries of members whose records begin at `log_offset`.

        Return how many entries fit into the queue's file.
        """
        cdef int64_t offset = queue.max_offset
        cdef Py_ssize_t number
        cdef char* p
        if queue.at == NULL or offset < queue.base:
            return 0
        count = min(count, queue.end - offset)
        p = queue.at + (offset - queue.base) * QUEUE_ENTRY_BYTES
        for number in range(first, first + count):
            put_u64(p, log_offset)
            put_u32(p + QUEUE_ENTRY_SIZE_AT, <uint32_t> (self._at[number].size + topic_size))
            put_u64(p + QUEUE_ENTRY_TAGS_CODE_AT, self._at[number].tags_code)
            log_offset += self._at[number].size + topic_size
            p += QUEUE_ENTRY_BYTES
        queue.max_offset = offset + max(count, 0)
        return max(count, 0)

    def arrivals(self, Py_ssize_t first, Py_ssize_t count, Py_ssize_t topic_size, int64_t log_offset):
        """Return log offset and tags code of `count` members whose records begin at `log_offset`."""
        found = []
        for number in range(first, first + count):
            found.append((log_offset, self._at[number].tags_code))
            log_offset += self._at[number].size + topic_size
        return found

    def ids(self, Py_ssize_t topic_size, bytes store_address not None, int64_t log_offset):
        """Return the offset message ids (store address and log offset) of all members, separated by commas."""
        cdef Py_ssize_t prefix_size = 2 * PyBytes_GET_SIZE(store_address)
        cdef Py_ssize_t number, size = self.count * (prefix_size + 17) - 1
        cdef bytes prefix = store_address.hex().upper().encode()
        cdef char* text = <char*> malloc(size + 1)
        cdef char* p = text
        if text == NULL:
            raise MemoryError
        try:
            for number in range(self.count):
                memcpy(p, PyBytes_AS_STRING(prefix), prefix_size)
                p = write_hex(p + prefix_size, log_offset)
                p[0] = c","
                p += 1
                log_offset += self._at[number].size + topic_size
            return text[:size].decode("ascii")
        finally:
            free(text)


cdef inline char* _write(
    const Member* member, char* p, const char* head, const char* topic, Py_ssize_t topic_size, const char* more,
    Py_ssize_t more_size, int64_t queue_offset, int64_t log_offset
) noexcept nogil:
    """Write the record of a member at `p`. Return the address after the record."""
    cdef char* text_at
    memcpy(p, head, RECORD_BODY_AT)
    put_u32(p, <uint32_t> (member.size + topic_size))
    put_u32(p + RECORD_BODY_CRC_AT, crc32_of(member.body, member.body_size) & 0x7FFFFFFF)
    put_u32(p + RECORD_FLAG_AT, <uint32_t> member.flag)
    put_u64(p + RECORD_QUEUE_OFFSET_AT, queue_offset)
    put_u64(p + RECORD_LOG_OFFSET_AT, log_offset)
    put_u32(p + RECORD_BODY_SIZE_AT, <uint32_t> member.body_size)
    p += RECORD_BODY_AT
    memcpy(p, member.body, member.body_size)
    p += member.body_size
    p[0] = <char> topic_size
    memcpy(p + 1, topic, topic_size)
    p += 1 + topic_size
    text_at = p
    p += 2
    memcpy(p, member.text, member.text_size)
    p += member.text_size
    if member.text_size and (p - 1)[0] != PAIRS:
        p[0] = PAIRS
        p += 1
    memcpy(p, more, more_size)
    p += more_size
    put_u16(text_at, <unsigned short> (p - text_at - 2))
    return p


cdef bint _asks_nothing(const char* text, Py_ssize_t size, int64_t* tags_code) noexcept nogil:
    """Return True if properties ask for no delay, delivery time or transaction, and have tags in their usual form.

    Sets `tags_code` to the code of the tags. If `tags_code` is NULL, properties with tags give False.
    """
    cdef const char* end = text + size
    cdef const char* p = text
    cdef const char* tags = NULL
    while True:
        p = <const char*> memchr(p, NAME_VALUE, end - p)
        if p == NULL:
            break
        if ends_with(text, p, TAGS, TAGS_SIZE):
            tags = p - TAGS_SIZE
        elif ends_with(text, p, DELAY, DELAY_SIZE) or ends_with(text, p, TRANSACTION, TRANSACTION_SIZE):
            return False
        p += 1
    p = text
    while True:
        p = <const char*> memchr(p, c"_", end - p)
        if p == NULL:
            break
        if p + 1 < end and p[1] == c"D" and ends_with(text, p, TIMER, TIMER_SIZE):
            return False
        p += 1
    return tags == NULL or (tags_code != NULL and tags_code_of(text, tags, end, tags_code))
