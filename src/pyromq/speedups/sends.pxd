from libc.stdint cimport int64_t

from pyromq.speedups.codec cimport Header, HeaderReader, ReplyWriter
from pyromq.speedups.fast_path cimport FastHandler
from pyromq.speedups.records cimport Counter, LogTail, QueueTail, Record

cdef class SendPlan:
    cdef object topic
    cdef dict queues
    cdef list tails
    cdef int queue_count
    cdef int more_flags
    cdef Counter counter
    cdef bint takes_times
    cdef bytes encoded
