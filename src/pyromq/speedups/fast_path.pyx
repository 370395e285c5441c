# cython: language_level=3
"""What answers hot requests without making objects of them: the seam between the network and what answers."""

from pyromq.speedups.codec cimport Frame, Header, Output


cdef class FastHandler:
    """Answers frames of one request code, or leaves them to the plain path, which gets what it never touched.

    What it knows of topics, groups and permissions was decided in Python; `begin` asks whether that still holds, once in
    a turn of the loop, and again when Python has run in between.
    """

    def __cinit__(self):
        self.most = 1

    cdef bint begin(self) except -1:
        """Drop what does not hold any more. False: the plain path answers everything until this is asked again."""
        return False

    cdef bint end_turn(self) except -1:
        """A turn of the loop ends: let go what may be taken away in the next."""
        return True

    cdef int answer(self, const Frame* frames, int count, const char* born_address, Output output) except -1:
        """Answer frames whole, in order, and return how many; nothing is done about the rest. `born_address`: 8 bytes, the
        peer's. There are `most` of them at most, and at least one; where that is not answered, the plain path does it.
        """
        return 0


cdef class FastGuard:
    """Says who may ask what answers hot requests. `begin` is asked as often as theirs."""

    cdef bint begin(self) except -1:
        """Forget what does not hold any more."""
        return True

    cdef int passing(
        self, const Frame* frames, const Header* headers, int count, const char* address, Passed* passed
    ) except -1:
        """Return how many requests may be answered, up to the first that may not, or is not judged: headers were read.

        Where that is the first of all, the plain path judges it.
        """
        return 0
