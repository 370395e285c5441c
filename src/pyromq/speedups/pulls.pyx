# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Answers pulls that find messages.

Pulls that find nothing, must wait, or may read the disk are left to the plain path (the Python code). The plain path
also decides once whether a consumer may pull, and with which filter.
"""

from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from pyromq.speedups.codec cimport Frame, Header, HeaderReader, Output, ReplyWriter
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport Channel, FastGuard, FastHandler, Passed, plan_key
from pyromq.speedups.reads cimport Reads, TagCodes
from pyromq.speedups.records cimport Counter, QueueTail

cdef enum:
    MOST_PLANS = 10_000


cdef class PullPlan:
    """How the pulls of a consumer group from one queue are answered, as Python code has decided.

    `codes` are the tags codes that the subscription accepts; None accepts all. `facts` are triples of table, key and
    value: the plan is valid while each table has the identical value at its key.
    """

    cdef object group, topic, queue_id
    cdef QueueTail queue
    cdef TagCodes codes
    cdef Counter counter
    cdef list facts

    def __init__(self, group, topic, queue_id, QueueTail queue, *, codes, Counter counter, list facts):
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.queue = queue
        self.codes = TagCodes(codes)
        self.counter = counter
        self.facts = facts

    cdef bint holds(self) except -1:
        cdef PyObject* found
        for table, key, value in self.facts:
            found = PyDict_GetItem(table, key)
            if found != <PyObject*> value:
                return False
        return True


cdef class Pulls(FastHandler):
    """Answers the pulls of one request code.

    `plan_for(values)` returns a plan for the field values of a header, or None if the plain path must answer. All plans
    are dropped when `version()` returns another value. `commit(group, topic, queue id, offset)` saves a consumer
    offset.
    """

    cdef HeaderReader _reader
    cdef Reads _reads
    cdef ReplyWriter _writer
    cdef object _plan_for, _version, _commit, _seen
    cdef dict _plans
    cdef Counter _total
    cdef Header _header
    cdef FastGuard _guard  # None if permissions are off
    cdef Passed _passed

    def __init__(
        self, HeaderReader reader, Reads reads, *, plan_for, version, commit, Counter total, ReplyWriter writer,
        FastGuard guard=None
    ):
        self.code = reader.code
        self._reader = reader
        self._reads = reads
        self._plan_for = plan_for
        self._version = version
        self._commit = commit
        self._total = total
        self._writer = writer
        self._guard = guard
        self._plans = {}
        self._seen = None

    cdef bint begin(self) except -1:
        version = self._version()
        if version != self._seen:
            self._seen = version
            self._plans.clear()
        if self._guard is not None:
            self._guard.begin()
        return True

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
        plan = self._plan(header)
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
        plan.counter.times += 1
        plan.counter.count += reads.taken
        plan.counter.size += reads.total
        self._total.times += 1
        self._total.count += reads.taken
        self._total.size += reads.total
        return True

    cdef bint end_turn(self) except -1:
        self._reads.release()
        return True

    cdef PullPlan _plan(self, Header* header):
        """Return the plan for pulls with the fields of this header; None if the plain path must answer."""
        cdef PyObject* found
        cdef PullPlan plan
        cdef int[7] numbers = [
            PULL_CONSUMER_GROUP, PULL_TOPIC, PULL_QUEUE_ID, PULL_SYS_FLAG, PULL_SUBSCRIPTION_VERSION, PULL_SUBSCRIPTION,
            PULL_EXPRESSION_TYPE,
        ]
        key = plan_key(header, numbers, 7)
        if key is None:
            return None
        found = PyDict_GetItem(self._plans, key)
        if found != NULL:
            plan = <PullPlan> <object> found
            if plan.holds():
                return plan
            del self._plans[key]
        plan = self._plan_for(self._reader.found(header))
        if plan is not None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan
