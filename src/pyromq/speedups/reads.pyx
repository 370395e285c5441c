# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads messages of queues for compiled handlers: scans queue entries and copies their records.

A read that finds nothing, or may need the disk, is left to the plain path (the Python code). Queue entries that an
earlier process wrote are compared with their records. If such an entry is wrong, or if the read has a filter, the
plain path reads.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from pyromq.speedups.codec cimport HeaderReader, ReplyWriter
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport FastGuard, FastHandler, plan_key
from pyromq.speedups.kernels cimport get_u32, get_u64
from pyromq.speedups.records cimport Counter, LogTail, QueueTail, is_own_record

cdef enum:
    MAX_PLANS = 10_000

MAX_TAGS = MAX_CODES  # limit of tags of a subscription that a `TagCodes` can hold


cdef class TagCodes:
    """The tags codes that a subscription accepts; None accepts all."""

    def __init__(self, codes):
        self.count = -1
        if codes is not None:
            if not 0 < len(codes) <= MAX_CODES:
                raise ValueError(f"a plan holds 1 to {MAX_CODES} codes, not {len(codes)}")
            self.count = len(codes)
            for number, code in enumerate(codes):
                self._codes[number] = code

    cdef bint accept(self, int64_t code) noexcept nogil:
        cdef int number
        if self.count < 0:
            return True
        for number in range(self.count):
            if self._codes[number] == code:
                return True
        return False


cdef class Reads:
    """Reads of one handler. `scan` selects messages; `copy` and `offsets` return what the last scan selected.

    `is_loaded(begin, end)` returns whether a range of the log is in memory. `segment_of(offset)` returns base and
    memory of the log file that holds a log offset, None if the file is deleted.
    """

    def __init__(
        self, LogTail log, *, is_loaded, segment_of, max_bytes, max_count, bulk_bytes, bulk_count, scanned, recent_bytes,
        warm_bytes
    ):
        self._log = log
        self._is_loaded = is_loaded
        self._segment_of = segment_of
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._bulk_bytes = bulk_bytes
        self._bulk_count = bulk_count
        self._scanned = scanned
        self._recent = recent_bytes
        self._warm = warm_bytes

    cdef int64_t end_of(self, QueueTail queue) except -1:
        """Return the offset after the last message that consumers may read."""
        return queue.max_offset if self._log.readable_to >= self._log.end else _end_before(queue, self._log.readable_to)

    cdef bint scan(
        self, QueueTail queue, TagCodes codes, int64_t queue_id, int64_t offset, int64_t count, int64_t max_bytes
    ) except -1:
        """Select up to `count` messages from `offset` on; `max_bytes` -1 means the usual limit of bytes.

        Return False if the plain path must read.
        """
        cdef LogTail log = self._log
        cdef const char* entries
        cdef int64_t limit, limit_bytes, max_count, scanned, taken, total, start, size, first
        cdef int64_t base, end, doubted, queue_end
        cdef const char* at
        cdef Py_buffer view
        queue_end = self.end_of(queue)
        if not queue.min_offset <= offset < queue_end or log.at == NULL or count <= 0:
            return False
        doubted = queue.unverified_end - offset
        if doubted > 0 and codes.count >= 0:
            return False
        limit = min(max(self._scanned, count), queue_end - offset)
        limit_bytes, max_count = self._max_bytes, self._max_count
        if max_bytes >= 0:
            limit_bytes = max_bytes
            if limit_bytes > self._max_bytes:  # a bulk read has its own limits
                limit_bytes, max_count = min(limit_bytes, self._bulk_bytes), self._bulk_count
        count = min(count, max_count)
        self._content = None
        if queue.at != NULL and offset >= queue.base:
            entries = queue.at + (offset - queue.base) * QUEUE_ENTRY_BYTES
        else:  # an older file of the queue, or a queue without appends since the start
            self._content = queue.content(offset, limit)
            if self._content is None:
                return False
            PyObject_GetBuffer(self._content, &view, PyBUF_SIMPLE)
            entries = <const char*> view.buf
            limit = view.len // QUEUE_ENTRY_BYTES
            PyBuffer_Release(&view)  # `_content` keeps the memory mapped
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
            if taken and (taken >= count or total + size > limit_bytes):
                break
            scanned += 1
            if codes.count >= 0 and not codes.accept(
                <int64_t> get_u64(entries + (scanned - 1) * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_TAGS_CODE_AT)
            ):
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
            if not is_own_record(at + (start - base), start, size, queue_id, offset + limit):
                return False
        self._codes, self._entries, self._at, self._base, self._first = codes, entries, at, base, offset
        self.scanned, self.taken, self.total = scanned, taken, total
        return True

    cdef char* copy(self, char* target) noexcept:
        """Copy the selected records, `total` bytes. Return the address after them."""
        cdef int64_t run_start = -1, run_end = -1, number, start
        cdef const char* entry
        for number in range(self.scanned):
            entry = self._entries + number * QUEUE_ENTRY_BYTES
            start = <int64_t> get_u64(entry)
            if self._codes.count >= 0 and not self._codes.accept(<int64_t> get_u64(entry + QUEUE_ENTRY_TAGS_CODE_AT)):
                continue
            if start != run_end:
                if run_end > run_start:
                    memcpy(target, self._at + (run_start - self._base), run_end - run_start)
                    target += run_end - run_start
                run_start = start
            run_end = start + <int32_t> get_u32(entry + QUEUE_ENTRY_SIZE_AT)
        memcpy(target, self._at + (run_start - self._base), run_end - run_start)
        return target + (run_end - run_start)

    cdef int offsets(self, int64_t* found) noexcept:
        """Write the queue offsets of the selected messages. Return their number."""
        cdef int count = 0
        cdef int64_t number
        for number in range(self.scanned):
            if self._codes.accept(<int64_t> get_u64(self._entries + number * QUEUE_ENTRY_BYTES + QUEUE_ENTRY_TAGS_CODE_AT)):
                found[count] = self._first + number
                count += 1
        return count

    cdef int release(self) except -1:
        """Release mapped memory at the end of a turn: a deleted file keeps its disk space while it is mapped."""
        self._older = self._content = None
        return 0

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


cdef class ReadPlan:
    """How requests of a group that read a topic are answered, as Python code has decided.

    `codes` are the tags codes that the subscription accepts; None accepts all.
    """

    def __init__(self, codes, Counter counter):
        self.codes = TagCodes(codes)
        self.counter = counter

    cdef bint holds(self) except -1:
        """Return False if the plan must be made again."""
        return True


cdef class ReadHandler(FastHandler):
    """Answers the reading requests of one request code, by plans.

    `plan_for(values)` returns a plan for the field values of a header, or None if the plain path must answer. All plans
    are dropped when `version()` returns another value.
    """

    def __init__(
        self, HeaderReader reader, Reads reads, *, plan_for, version, Counter total, ReplyWriter writer, FastGuard guard=None
    ):
        self.code = reader.code
        self._reader = reader
        self._reads = reads
        self._plan_for = plan_for
        self._version = version
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

    cdef bint end_turn(self) except -1:
        self._reads.release()
        return True

    cdef ReadPlan plan_of(self, const int* numbers, int count):
        """Return the plan for requests with these fields of the header; None if the plain path must answer."""
        cdef PyObject* found
        cdef ReadPlan plan
        key = plan_key(&self._header, numbers, count)
        if key is None:
            return None
        found = PyDict_GetItem(self._plans, key)
        if found != NULL:
            plan = <ReadPlan> <object> found
            if plan.holds():
                return plan
            del self._plans[key]
        plan = self._plan_for(self._reader.found(&self._header))
        if plan is not None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    cdef int count_read(self, ReadPlan plan) except -1:
        """Count the messages of the last scan as read by the plan's group, and in all."""
        cdef Reads reads = self._reads
        plan.counter.times += 1
        plan.counter.count += reads.taken
        plan.counter.size += reads.total
        self._total.times += 1
        self._total.count += reads.taken
        self._total.size += reads.total
        return 0


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
