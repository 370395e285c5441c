# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Answers pulls that find messages: scans queue entries and copies the records into the reply.

Pulls that find nothing, must wait, or may read the disk are left to the plain path (the Python code). The plain path
also decides once whether a consumer may pull, and with which filter. Queue entries that an earlier process wrote are
compared with their records. If such an entry is wrong, or if the pull has a filter, the plain path answers.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from pyromq.speedups.codec cimport Frame, Header, HeaderReader, Output, ReplyWriter
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport Channel, FastGuard, FastHandler, Passed
from pyromq.speedups.kernels cimport get_u32, get_u64
from pyromq.speedups.records cimport Counter, LogTail, QueueTail, is_own_record

cdef enum:
    MOST_KEY = 1024
    MOST_PLANS = 10_000
    MOST_CODES = 16

MOST_TAGS = MOST_CODES  # limit of tags of a subscription that a `PullPlan` can hold


cdef class PullPlan:
    """How the pulls of a consumer group from one queue are answered, as Python code has decided.

    `codes` are the tags codes that the subscription accepts; None accepts all. `facts` are triples of table, key and
    value: the plan is valid while each table has the identical value at its key.
    """

    cdef object group, topic, queue_id
    cdef QueueTail queue
    cdef int64_t codes[MOST_CODES]
    cdef int code_count
    cdef Counter counter
    cdef list facts

    def __init__(self, group, topic, queue_id, QueueTail queue, *, codes, Counter counter, list facts):
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.queue = queue
        self.counter = counter
        self.facts = facts
        self.code_count = -1
        if codes is not None:
            if not 0 < len(codes) <= MOST_CODES:
                raise ValueError(f"a plan holds 1 to {MOST_CODES} codes, not {len(codes)}")
            self.code_count = len(codes)
            for number, code in enumerate(codes):
                self.codes[number] = code

    cdef bint holds(self) except -1:
        cdef PyObject* found
        for table, key, value in self.facts:
            found = PyDict_GetItem(table, key)
            if found != <PyObject*> value:
                return False
        return True

    cdef bint wants(self, int64_t code) noexcept nogil:
        cdef int number
        if self.code_count < 0:
            return True
        for number in range(self.code_count):
            if self.codes[number] == code:
                return True
        return False


cdef class Pulls(FastHandler):
    """Answers the pulls of one request code.

    `plan_for(values)` returns a plan for the field values of a header, or None if the plain path must answer. All plans
    are dropped when `version()` returns another value. `commit(group, topic, queue id, offset)` saves a consumer
    offset. `is_loaded(begin, end)` returns whether a range of the log is in memory. `segment_of(offset)` returns base
    and memory of the log file that holds a log offset, None if the file is deleted.
    """

    cdef HeaderReader _reader
    cdef LogTail _log
    cdef ReplyWriter _writer
    cdef object _plan_for, _version, _commit, _is_loaded, _segment_of, _seen
    cdef object _older  # mapped memory of an older log file, kept until the end of the turn
    cdef const char* _older_at
    cdef int64_t _older_base, _older_end
    cdef dict _plans
    cdef Counter _total
    cdef int64_t _max_bytes, _max_count, _bulk_bytes, _bulk_count, _scanned, _recent, _warm
    cdef char _key[MOST_KEY]
    cdef Header _header
    cdef FastGuard _guard  # None if permissions are off
    cdef Passed _passed

    def __init__(
        self, HeaderReader reader, LogTail log, *, plan_for, version, commit, is_loaded, segment_of, Counter total, ReplyWriter writer,
        max_bytes, max_count, bulk_bytes, bulk_count, scanned, recent_bytes, warm_bytes, FastGuard guard=None
    ):
        self.code = reader.code
        self._reader = reader
        self._log = log
        self._plan_for = plan_for
        self._version = version
        self._commit = commit
        self._is_loaded = is_loaded
        self._segment_of = segment_of
        self._older = None
        self._total = total
        self._writer = writer
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._bulk_bytes = bulk_bytes
        self._bulk_count = bulk_count
        self._scanned = scanned
        self._recent = recent_bytes
        self._warm = warm_bytes
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
        cdef PullPlan plan
        cdef QueueTail queue
        cdef LogTail log = self._log
        cdef const char* entries
        cdef int64_t offset, count, limit, max_bytes, max_count, scanned, taken, total, start, size, run_start, run_end, first
        cdef int64_t base, end, doubted, queue_end
        cdef const char* at
        cdef Py_buffer view
        cdef int64_t values[3]
        cdef char* target
        if not self._reader.read(frame, header) or header.flag & ONE_WAY:
            return False
        if self._guard is not None and not self._guard.passes(frame, header, channel.address, &self._passed):
            return False
        plan = self._plan(header)
        if plan is None:
            return False
        queue = plan.queue
        offset = header.fields[PULL_QUEUE_OFFSET].number
        count = header.fields[PULL_MAX_COUNT].number
        queue_end = queue.max_offset if log.readable_to >= log.end else _end_before(queue, log.readable_to)
        if not queue.min_offset <= offset < queue_end or log.at == NULL or count <= 0:
            return False
        doubted = queue.unverified_end - offset
        if doubted > 0 and plan.code_count >= 0:
            return False
        limit = min(max(self._scanned, count), queue_end - offset)
        max_bytes, max_count = self._max_bytes, self._max_count
        if header.fields[PULL_MAX_BYTES].at != NULL:
            max_bytes = header.fields[PULL_MAX_BYTES].number
            if max_bytes > self._max_bytes:  # a bulk read has its own limits
                max_bytes, max_count = min(max_bytes, self._bulk_bytes), self._bulk_count
        count = min(count, max_count)
        content = None
        if queue.at != NULL and offset >= queue.base:
            entries = queue.at + (offset - queue.base) * QUEUE_ENTRY_BYTES
        else:  # an older file of the queue, or a queue without appends since the start
            content = queue.content(offset, limit)
            if content is None:
                return False
            PyObject_GetBuffer(content, &view, PyBUF_SIMPLE)
            entries = <const char*> view.buf
            limit = view.len // QUEUE_ENTRY_BYTES
            PyBuffer_Release(&view)  # `content` keeps the memory mapped
        first = <int64_t> get_u64(entries)
        if first < log.end - self._warm or (first < log.base and not self._has_older(first)):
            return False
        base, end, at = log.base, log.end, <const char*> log.at
        if first < log.base:
            base, end, at = self._older_base, self._older_end, self._older_at
        scanned = taken = total = 0
        while scanned < limit:
            start = <int64_t> get_u64(entries + scanned * QUEUE_ENTRY_BYTES)
            size = <int32_t> get_u32(entries + scanned * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_SIZE_AT)
            if taken and (taken >= count or total + size > max_bytes):
                break
            scanned += 1
            if not plan.wants(<int64_t> get_u64(entries + (scanned - 1) * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_TAGS_CODE_AT)):
                continue
            if size <= 0 or start < base or start > end - size:
                return False
            taken += 1
            total += size
        if not taken:
            return False
        start = <int64_t> get_u64(entries + (scanned - 1) * QUEUE_ENTRY_BYTES)
        size = <int32_t> get_u32(entries + (scanned - 1) * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_SIZE_AT)
        if first < log.end - self._recent and not self._is_loaded(first, start + size):
            return False
        for limit in range(min(scanned, doubted)):
            start = <int64_t> get_u64(entries + limit * QUEUE_ENTRY_BYTES)
            size = <int32_t> get_u32(entries + limit * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_SIZE_AT)
            if not is_own_record(at + (start - base), start, size, header.fields[PULL_QUEUE_ID].number, offset + limit):
                return False
        if header.fields[PULL_SYS_FLAG].number & COMMIT_OFFSET:
            self._commit(plan.group, plan.topic, plan.queue_id, header.fields[PULL_COMMIT_OFFSET].number)
        values[0] = offset + scanned
        values[1] = queue.min_offset
        values[2] = queue_end
        target = self._writer.write(output, values, header, total)
        output.end += total
        run_start = run_end = -1
        for limit in range(scanned):
            start = <int64_t> get_u64(entries + limit * QUEUE_ENTRY_BYTES)
            if not plan.wants(<int64_t> get_u64(entries + limit * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_TAGS_CODE_AT)):
                continue
            size = <int32_t> get_u32(entries + limit * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_SIZE_AT)
            if start != run_end:
                if run_end > run_start:
                    memcpy(target, at + (run_start - base), run_end - run_start)
                    target += run_end - run_start
                run_start = start
            run_end = start + size
        memcpy(target, at + (run_start - base), run_end - run_start)
        plan.counter.times += 1
        plan.counter.count += taken
        plan.counter.size += total
        self._total.times += 1
        self._total.count += taken
        self._total.size += total
        return True

    cdef bint end_turn(self) except -1:
        self._older = None  # a deleted file keeps its disk space while it is mapped
        return True

    cdef bint _has_older(self, int64_t offset) except -1:
        """Map the older log file that holds a log offset. Return False if the file is deleted."""
        cdef Py_buffer view
        if self._older is not None and self._older_base <= offset < self._older_end:
            return True
        found = self._segment_of(offset)
        if found is None:
            return False
        self._older_base, self._older = found
        PyObject_GetBuffer(self._older, &view, PyBUF_SIMPLE)
        self._older_at = <const char*> view.buf
        self._older_end = self._older_base + view.len
        PyBuffer_Release(&view)
        return True

    cdef PullPlan _plan(self, Header* header):
        """Return the plan for pulls with the fields of this header; None if the plain path must answer."""
        cdef Py_ssize_t size = 0
        cdef int number
        cdef PyObject* found
        cdef PullPlan plan
        for number in (
            PULL_CONSUMER_GROUP, PULL_TOPIC, PULL_QUEUE_ID, PULL_SYS_FLAG, PULL_SUBSCRIPTION_VERSION, PULL_SUBSCRIPTION,
            PULL_EXPRESSION_TYPE,
        ):
            if header.fields[number].at != NULL:
                if header.fields[number].is_escaped or size + header.fields[number].size + 2 > MOST_KEY:
                    return None
                memcpy(self._key + size, header.fields[number].at, header.fields[number].size)
                size += header.fields[number].size
                self._key[size] = 1
                size += 1
            self._key[size] = 0
            size += 1
            if size >= MOST_KEY:
                return None
        key = PyBytes_FromStringAndSize(self._key, size)
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


cdef int64_t _end_before(QueueTail queue, int64_t log_offset) except -1:
    """Return the result of `ConsumeQueue.end_before`. Searches the queue's last file without Python objects."""
    cdef int64_t low = queue.max_offset, high = queue.max_offset, first = max(queue.base, queue.min_offset), step = 1
    if queue.at == NULL or first >= high or (first > queue.min_offset and not _is_before(queue, first, log_offset)):
        return queue.end_before(log_offset)
    while low > first and not _is_before(queue, low - 1, log_offset):
        high = low - 1
        low = max(low - step, first)
        step *= 2
    while low < high:
        step = (low + high) // 2
        if _is_before(queue, step, log_offset):
            low = step + 1
        else:
            high = step
    return low


cdef inline bint _is_before(QueueTail queue, int64_t queue_offset, int64_t log_offset) noexcept:
    cdef const char* entry = queue.at + (queue_offset - queue.base) * QUEUE_ENTRY_BYTES
    cdef int64_t size = <int32_t> get_u32(entry + QUEUE_ENTRY_SIZE_AT)
    return <int64_t> get_u64(entry) + (1 if size == FILLER_SIZE else size) <= log_offset
