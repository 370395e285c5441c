from libc.stdint cimport uint64_t

from pyromq.speedups.codec cimport Frame, Header, Output

cdef class FastHandler:
    cdef readonly int code
    cdef uint64_t turn  # of the reactor, in which `begin` was asked last
    cdef bint is_on  # what it said
    cdef bint has_stirred  # whether an answer may have given the loop something to do
    cdef int most  # frames that it answers at once
    cdef bint begin(self) except -1
    cdef bint end_turn(self) except -1
    cdef int answer(self, const Frame* frames, int count, const char* born_address, Output output) except -1

cdef enum:
    MOST_AT_ONCE = 16

cdef struct Passed:  # a request that may be answered
    char* copy  # the text of field `copied`, without escapes, to be changed, until others are judged; NULL: there is none
    Py_ssize_t copy_size
    int copied

cdef class FastGuard:
    cdef bint begin(self) except -1
    cdef int passing(
        self, const Frame* frames, const Header* headers, int count, const char* address, Passed* passed
    ) except -1
