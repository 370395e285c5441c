from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from pyromq.speedups.codec cimport Frame, Header, Output

cdef class Channel:
    cdef char address[8]  # the peer's IPv4 address and port, as in records
    cdef readonly int parked  # number of replies in `ParkedReplies`
    cdef bint is_released  # True while `push_released` must still be called
    cdef int put_released(self, const char* reply, Py_ssize_t size) except -1
    cdef int push_released(self) except -1

cdef class FastHandler:
    cdef readonly int code
    cdef uint64_t turn  # number of the reactor's turn in which `begin` was called last
    cdef bint is_on  # last result of `begin`
    cdef bint has_stirred  # True if an answer may have given the event loop work
    cdef bint begin(self) except -1
    cdef bint end_turn(self) except -1
    cdef bint answer(self, const Frame* frame, Channel channel, Output output) except -1

cdef object plan_key(const Header* header, const int* numbers, int count)

cdef struct Passed:  # what the permission check leaves of a permitted request
    char* copy  # field `copied` without escapes, valid until the next check; NULL if no field was copied
    Py_ssize_t copy_size
    int copied

cdef class FastGuard:
    cdef bint begin(self) except -1
    cdef bint passes(self, const Frame* frame, const Header* header, const char* address, Passed* passed) except -1

cdef struct Parked:
    PyObject* channel  # a counted reference
    Py_ssize_t size  # bytes of the reply; 0 for a one-way request
    int64_t log_offset
    double since  # time of parking, in monotonic seconds

cdef class ParkedReplies:
    cdef Output replies  # bytes of the parked replies, in order
    cdef int room  # number of replies that may still be parked in this turn
    cdef Parked* _parked  # ring buffer of the parked replies
    cdef int _first, _count, _capacity
    cdef public bint is_on, holds_all
    cdef bint _has_new
    cdef double _now
    cdef object _monotonic, _free_room, _confirm
    cdef bint begin(self) except -1
    cdef int park(self, Channel channel, Py_ssize_t size, int64_t log_offset) except -1
    cdef bint end_turn(self) except -1
    cdef int _take_first(self, list released, change) except -1
    cdef int _push(self, list released) except -1
