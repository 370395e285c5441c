from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from pyromq.speedups.codec cimport Frame, Header, Output

cdef class Channel:
    cdef char address[8]  # the peer's, as records have it
    cdef readonly int parked  # replies that wait for their confirmation
    cdef bint is_released  # whether `push_released` is still to be called
    cdef int put_released(self, const char* reply, Py_ssize_t size) except -1
    cdef int push_released(self) except -1

cdef class FastHandler:
    cdef readonly int code
    cdef uint64_t turn  # of the reactor, in which `begin` was asked last
    cdef bint is_on  # what it said
    cdef bint has_stirred  # whether an answer may have given the loop something to do
    cdef bint begin(self) except -1
    cdef bint end_turn(self) except -1
    cdef bint answer(self, const Frame* frame, Channel channel, Output output) except -1

cdef struct Passed:  # a permitted request
    char* copy  # the text of field `copied`, without escapes, until the next request is judged; NULL: there is none
    Py_ssize_t copy_size
    int copied

cdef class FastGuard:
    cdef bint begin(self) except -1
    cdef bint passes(self, const Frame* frame, const Header* header, const char* address, Passed* passed) except -1

cdef struct Parked:
    PyObject* channel  # a reference is held
    Py_ssize_t size  # of the reply; 0: the request asked for none
    int64_t log_offset
    double since  # monotonic seconds

cdef class ParkedReplies:
    cdef Output replies  # their bytes, in order
    cdef int room  # replies that may still be parked in this turn
    cdef Parked* _parked  # a ring
    cdef int _first, _count, _capacity
    cdef bint _has_new, _is_awaited
    cdef double _now
    cdef object _monotonic, _free_room, _confirm
    cdef bint begin(self) except -1
    cdef int park(self, Channel channel, Py_ssize_t size, int64_t log_offset) except -1
    cdef int end_turn(self) except -1
    cdef int _take_first(self, list released, change) except -1
