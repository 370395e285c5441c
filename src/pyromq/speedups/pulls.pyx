# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Answers pulls that find messages.

Pulls that find nothing, must wait, or may read the disk are left to the plain path (the Python code). The plain path
also decides once whether a consumer may pull, and with which filter.
"""

from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from pyromq.speedups.codec cimport Frame, Header, HeaderReader, Output
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport Channel
from pyromq.speedups.reads cimport ReadHandler, ReadPlan, Reads
from pyromq.speedups.records cimport Counter, QueueTail


cdef class PullPlan(ReadPlan):
    """How the pulls of a consumer group from one queue are answered, as Python code has decided.

    `facts` are triples of table, key and value: the plan is valid while each table has the identical value at its key.
    """

    cdef object group, topic, queue_id
    cdef QueueTail queue
    cdef list facts

    def __init__(self, group, topic, queue_id, QueueTail queue, *, codes, Counter counter, list facts):
        super().__init__(codes, counter)
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.queue = queue
        self.facts = facts

    cdef bint holds(self) except -1:
        cdef PyObject* found
        for table, key, value in self.facts:
            found = PyDict_GetItem(table, key)
            if found != <PyObject*> value:
                return False
        return True


cdef class Pulls(ReadHandler):
    """Answers the pulls of one request code. `commit(group, topic, queue id, offset)` saves a consumer offset."""

    cdef object _commit

    def __init__(self, HeaderReader reader, Reads reads, *, commit, **shared):
        super().__init__(reader, reads, **shared)
        self._commit = commit

    cdef bint answer(self, const Frame* frame, Channel channel, Output output) except -1:
        cdef Header* header = &self._header
        cdef Reads reads = self._reads
        cdef PullPlan plan
        cdef int64_t offset, max_bytes = -1
        cdef int64_t values[3]
        cdef char* target
        if not self._reader.read(frame, header) or header.flag & ONE_WAY:
            return False
        if self._guard is not None and not self._guard.passes(frame, header, channel.address, &self._passed):
            return False
        plan = self._plan()
        if plan is None:
            return False
        offset = header.fields[PULL_QUEUE_OFFSET].number
        if header.fields[PULL_MAX_BYTES].at != NULL:
            max_bytes = max(0, header.fields[PULL_MAX_BYTES].number)
        if not reads.scan(
            plan.queue, plan.codes, header.fields[PULL_QUEUE_ID].number, offset, header.fields[PULL_MAX_COUNT].number, max_bytes
        ):
            return False
        if header.fields[PULL_SYS_FLAG].number & COMMIT_OFFSET:
            self._commit(plan.group, plan.topic, plan.queue_id, header.fields[PULL_COMMIT_OFFSET].number)
        values[0] = offset + reads.scanned
        values[1] = plan.queue.min_offset
        values[2] = reads.end_of(plan.queue)
        target = self._writer.write(output, values, header, reads.total)
        output.end += reads.total
        reads.copy(target)
        self.count_read(plan)
        return True

    cdef PullPlan _plan(self):
        cdef int[7] numbers = [
            PULL_CONSUMER_GROUP, PULL_TOPIC, PULL_QUEUE_ID, PULL_SYS_FLAG, PULL_SUBSCRIPTION_VERSION, PULL_SUBSCRIPTION,
            PULL_EXPRESSION_TYPE,
        ]
        return self.plan_of(numbers, 7)
