# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Interface between the network and the compiled handlers of frequent requests, which create no Python objects."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyromq.speedups.codec cimport Field, Frame, Header, Output

cdef enum:
    MAX_KEY = 1024


cdef class Channel:
    """A connection as compiled handlers see it."""

    cdef int put_released(self, const char* reply, Py_ssize_t size) except -1:
        """Add a confirmed reply to send to this connection. A closed connection drops the reply."""
        return 0

    cdef int push_released(self) except -1:
        """Send the replies added by `put_released`."""
        return 0


cdef class FastHandler:
    """Answers frames of one request code, or leaves a frame unchanged to the plain path (the Python code).

    A handler caches what Python code has decided on topics, groups and permissions. `begin` drops outdated decisions.
    The reactor calls `begin` once per turn, and again after Python code has run in the turn.
    """

    cdef bint begin(self) except -1:
        """Drop outdated decisions. Return False if the plain path must answer all requests until the next call."""
        return False

    cdef bint end_turn(self) except -1:
        """End a turn: release memory that may be unmapped before the next turn."""
        return True

    cdef bint answer(self, const Frame* frame, Channel channel, Output output) except -1:
        """Answer a frame. Return False if the plain path must answer. The reply goes to `output`, or into `ParkedReplies`."""
        return False


cdef object plan_key(const Header* header, const int* numbers, int count):
    """Return the fields with these numbers as one key of a handler's plans; None if the plain path must answer."""
    cdef char key[MAX_KEY]
    cdef Py_ssize_t size = 0
    cdef int place
    cdef const Field* field
    for place in range(count):
        field = &header.fields[numbers[place]]
        if field.at != NULL:
            if field.is_escaped or size + field.size + 2 > MAX_KEY:
                return None
            memcpy(key + size, field.at, field.size)
            size += field.size
            key[size] = 1
            size += 1
        key[size] = 0
        size += 1
        if size >= MAX_KEY:
            return None
    return PyBytes_FromStringAndSize(key, size)


cdef class FastGuard:
    """Checks the permissions of requests that a handler answers. The handler's `begin` calls the guard's `begin`."""

    cdef bint begin(self) except -1:
        """Drop outdated decisions on permissions."""
        return True

    cdef bint passes(self, const Frame* frame, const Header* header, const char* address, Passed* passed) except -1:
        """Return True if the request with this header is permitted; False if the plain path must check the request."""
        return False


cdef class ParkedReplies:
    """Replies of all connections that are sent once the log is confirmed up to their log offsets.

    The log offsets ascend. At most `capacity` replies are parked; `free_room()` returns how many more may be parked
    now. `confirm()` is called at the end of a turn with new replies, and returns True if it has given the event loop
    work. Each reply must later be sent by `release` or `fail`, which run in the event loop. While `is_on` is False,
    replies are sent immediately. With `holds_all`, replies whose sender does not wait are parked too.
    """

    def __cinit__(self, int capacity, *, monotonic, free_room, confirm):
        self._parked = <Parked*> malloc(capacity * sizeof(Parked))
        if self._parked == NULL:
            raise MemoryError
        self._capacity = capacity
        self._monotonic = monotonic
        self._free_room = free_room
        self._confirm = confirm
        self.replies = Output()

    def __dealloc__(self):
        while self._count:
            Py_DECREF(<object> self._parked[self._first].channel)
            self._first = (self._first + 1) % self._capacity
            self._count -= 1
        free(self._parked)

    def __len__(self):
        return self._count

    @property
    def oldest_since(self):
        """Time when the oldest parked reply was parked (monotonic seconds); None if no reply is parked."""
        return self._parked[self._first].since if self._count else None

    @property
    def first_offset(self):
        """Log offset up to which the oldest parked reply waits; -1 if no reply is parked."""
        return self._parked[self._first].log_offset if self._count else -1

    @property
    def last_offset(self):
        """Log offset up to which the newest parked reply waits; -1 if no reply is parked."""
        return self._parked[(self._first + self._count - 1) % self._capacity].log_offset if self._count else -1

    cdef bint begin(self) except -1:
        """Begin a turn. Return whether replies may be parked."""
        if not self.is_on:
            self.room = self._capacity
            return True
        self._now = self._monotonic()
        self.room = self._free_room()
        return self.room > 0

    cdef int park(self, Channel channel, Py_ssize_t size, int64_t log_offset) except -1:
        """Park a reply: the last `size` bytes of `replies`. `room` must be above 0."""
        cdef Parked* parked = &self._parked[(self._first + self._count) % self._capacity]
        Py_INCREF(channel)
        parked.channel = <PyObject*> channel
        parked.size = size
        parked.log_offset = log_offset
        parked.since = self._now
        channel.parked += 1
        self._count += 1
        self.room -= 1
        self._has_new = True
        return 0

    cdef bint end_turn(self) except -1:
        """End a turn. Return True if the event loop has work now."""
        if self._has_new:
            self._has_new = False
            return self._confirm()
        return False

    def release(self, int64_t log_offset):
        """Send the replies to requests whose records end at or before `log_offset`."""
        cdef list released = []
        while self._count and self._parked[self._first].log_offset <= log_offset:
            self._take_first(released, None)
        self._push(released)

    def fail(self, int64_t log_offset, double since, change):
        """Send the replies up to `log_offset`, or parked at or before `since`, each changed by `change(log offset, reply)`.

        `since` is in monotonic seconds.
        """
        cdef list released = []
        cdef Parked* first
        while self._count:
            first = &self._parked[self._first]
            if first.log_offset > log_offset and first.since > since:
                break
            self._take_first(released, change)
        self._push(released)

    cdef int _take_first(self, list released, change) except -1:
        cdef Parked* first = &self._parked[self._first]
        cdef Channel channel = <Channel> first.channel
        cdef Output replies = self.replies
        cdef const char* reply = replies.data + replies.begin
        Py_DECREF(channel)
        self._first = (self._first + 1) % self._capacity
        self._count -= 1
        channel.parked -= 1
        replies.begin += first.size
        if replies.begin == replies.end:
            replies.begin = replies.end = 0
        if not channel.is_released:
            channel.is_released = True
            released.append(channel)
        if first.size and change is not None:
            changed = change(first.log_offset, PyBytes_FromStringAndSize(reply, first.size))
            channel.put_released(PyBytes_AS_STRING(changed), PyBytes_GET_SIZE(changed))
        elif first.size:
            channel.put_released(reply, first.size)
        return 0

    cdef int _push(self, list released) except -1:
        cdef Channel channel
        for channel in released:
            channel.is_released = False
            channel.push_released()
        return 0
