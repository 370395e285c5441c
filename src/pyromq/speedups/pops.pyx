# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Answers pops that find messages in one queue: reads the queue, and copies the records into the reply.

The plain path (the Python code) decides whether a group may pop a topic, notes the pops, and answers all other pops:
those that find nothing, take messages of several queues or of the retry topic, or are orderly or renewed.
"""

from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from pyromq.speedups.codec cimport Frame, Header, HeaderReader, Output, Text, write_number
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport Channel
from pyromq.speedups.reads cimport ReadHandler, ReadPlan, Reads
from pyromq.speedups.records cimport Counter, QueueTail

cdef enum:
    MAX_NUMBER = 21  # characters of a number and a separator


cdef class PopPlan(ReadPlan):
    """How the pops of a group from a topic are answered, as Python code has decided.

    `popped` and `queues` are the group's state of each queue (a `PoppedQueue`) and the topic's queues, by queue id;
    `retries` and `retry_queues` are those of the group's retry topic. `rounds[key]` is the number of pops until now.
    """

    cdef dict popped, queues, retries, retry_queues, rounds
    cdef object key
    cdef int count

    def __init__(
        self, dict popped, dict queues, dict retries, dict retry_queues, *, int count, dict rounds, key, codes, Counter counter
    ):
        super().__init__(codes, counter)
        self.popped = popped
        self.queues = queues
        self.retries = retries
        self.retry_queues = retry_queues
        self.count = count
        self.rounds = rounds
        self.key = key

    cdef bint holds(self) except -1:
        return len(self.popped) >= self.count  # otherwise the group or the topic was deleted


cdef class Pops(ReadHandler):
    """Answers the pops of one request code.

    `max_in_flight()` limits the messages of one group and queue in flight. `pop_of(popped, start, bits, pop time, due
    time)` returns a pop, and `hand_out(pop, next offset)` notes it, or returns False if the plain path must refuse it.
    """

    cdef object _now_ms, _pop_of, _hand_out, _max_in_flight
    cdef int64_t _most, _max_ms, _max_bytes

    def __init__(
        self, HeaderReader reader, Reads reads, *, now_ms, pop_of, hand_out, max_in_flight, max_ms, max_bytes, **shared
    ):
        super().__init__(reader, reads, **shared)
        self._now_ms = now_ms
        self._pop_of = pop_of
        self._hand_out = hand_out
        self._max_in_flight = max_in_flight
        self._max_ms = max_ms
        self._max_bytes = max_bytes

    cdef bint begin(self) except -1:
        self._most = self._max_in_flight()
        return ReadHandler.begin(self)

    cdef bint answer(self, const Frame* frame, Channel channel, Output output) except -1:
        cdef Header* header = &self._header
        cdef Reads reads = self._reads
        cdef PopPlan plan
        cdef int64_t count, number, queue_id, chosen_id = -1, next_offset, rest = 0, earliest_ms = 0, room
        cdef int64_t end, chosen_offset = 0
        cdef int step
        cdef bint is_full = False
        cdef PyObject* found
        if not self._reader.read(frame, header) or header.flag & ONE_WAY or not self._is_plain(header):
            return False
        if self._guard is not None and not self._guard.passes(frame, header, channel.address, &self._passed):
            return False
        plan = self._plan()
        if plan is None or self._has_retries(plan, &earliest_ms):
            return False
        found = PyDict_GetItem(plan.rounds, plan.key)
        if found == NULL:
            return False
        number = <int64_t> (<object> found) + 1
        count = header.fields[POP_MAX_COUNT].number
        chosen = None
        for step in range(plan.count):
            queue_id = (number + step) % plan.count
            found = PyDict_GetItem(plan.popped, queue_id)
            if found == NULL:
                return False
            popped = <object> found
            earliest_ms = max(earliest_ms, <int64_t> popped.earliest_ms)
            found = PyDict_GetItem(plan.queues, queue_id)
            end = 0 if found == NULL else reads.end_of(<QueueTail> <object> found)
            next_offset = popped.next_offset
            if next_offset == end:
                continue
            if next_offset > end:
                return False
            rest += end - next_offset
            if is_full:
                continue
            if chosen is not None:
                return False
            room = min(count, self._most - <int64_t> popped.in_flight)
            if room <= 0:
                continue
            if not reads.scan(<QueueTail> <object> found, plan.codes, queue_id, next_offset, room, -1):
                return False
            is_full = reads.taken >= count or reads.total >= self._max_bytes
            chosen, chosen_id, chosen_offset = popped, queue_id, next_offset
        if chosen is None:
            return False
        return self._answer(plan, chosen, chosen_id, chosen_offset + reads.scanned, rest - reads.scanned, earliest_ms, number, output)

    cdef bint _is_plain(self, const Header* header) noexcept:
        """Return whether a pop is neither orderly nor renewed, and its numbers are valid."""
        if header.fields[POP_ORDER].at != NULL and header.fields[POP_ORDER].number:
            return False
        if header.fields[POP_ATTEMPT_ID].at != NULL or header.fields[POP_RENEWED_FOR].at != NULL:
            return False
        return (
            header.fields[POP_QUEUE_ID].number == -1
            and 0 < header.fields[POP_MAX_COUNT].number <= MAX_POPPED
            and 0 <= header.fields[POP_INVISIBLE_MS].number <= self._max_ms
        )

    cdef bint _has_retries(self, PopPlan plan, int64_t* earliest_ms) except -1:
        cdef PyObject* queue = PyDict_GetItem(plan.retry_queues, 0)
        cdef PyObject* found = PyDict_GetItem(plan.retries, 0)
        if found == NULL:
            return queue != NULL
        popped = <object> found
        earliest_ms[0] = popped.earliest_ms
        return popped.next_offset != (0 if queue == NULL else self._reads.end_of(<QueueTail> <object> queue))

    cdef bint _answer(
        self, PopPlan plan, popped, int64_t queue_id, int64_t after, int64_t rest, int64_t earliest_ms, int64_t number, Output output
    ) except -1:
        """Hand out the messages of the last scan. Return False if the plain path must refuse that."""
        cdef Header* header = &self._header
        cdef Reads reads = self._reads
        cdef int64_t offsets[MAX_POPPED]
        cdef char start_info[3 * MAX_NUMBER]
        cdef char offset_info[(2 + MAX_POPPED) * MAX_NUMBER]
        cdef Text texts[2]
        cdef int64_t values[6]
        cdef int place, taken = reads.offsets(offsets)
        cdef char* p
        cdef object one = 1  # not a C number: bits may be many
        bits = (one << taken) - 1
        if offsets[taken - 1] - offsets[0] >= taken:
            bits = 0
            for place in range(taken):
                bits |= one << (offsets[place] - offsets[0])
        values[0] = max(<int64_t> self._now_ms(), earliest_ms)
        values[1] = header.fields[POP_INVISIBLE_MS].number
        if not self._hand_out(self._pop_of(popped, offsets[0], bits, values[0], values[0] + values[1]), after):
            return False
        plan.rounds[plan.key] = number
        texts[0].at, texts[1].at = start_info, offset_info
        p = _write_place(start_info, queue_id)
        texts[0].size = write_number(p, offsets[0]) - start_info
        p = _write_place(offset_info, queue_id)
        for place in range(taken):
            if place:
                p[0] = c','
                p += 1
            p = write_number(p, offsets[place])
        texts[1].size = p - offset_info
        values[2] = 0  # no orderly queue
        values[3] = rest
        values[4], values[5] = <int64_t> &texts[0], <int64_t> &texts[1]
        p = self._writer.write(output, values, header, reads.total)
        output.end += reads.total
        reads.copy(p)
        self.count_read(plan)
        self.has_stirred = True  # an alarm may fire earlier
        return True

    cdef PopPlan _plan(self):
        cdef int[4] numbers = [POP_CONSUMER_GROUP, POP_TOPIC, POP_EXPRESSION_TYPE, POP_EXPRESSION]
        return self.plan_of(numbers, 4)


cdef inline char* _write_place(char* p, int64_t queue_id) noexcept:
    """Write the RETRY word and queue id of an info. Return the address after them."""
    p[0], p[1] = c'0', c' '
    p = write_number(p + 2, queue_id)
    p[0] = c' '
    return p + 1
