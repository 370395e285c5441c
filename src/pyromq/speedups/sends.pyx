# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stores and answers send requests, as `broker.producing.send_processor` does.

`timed` stores messages with a delivery time. The plain path (the Python code) answers delayed and half messages, new
topics, retry topics, ordered topics, unusual headers, and sends that need a new file.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Size
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memchr, memmove
from posix.strings cimport strncasecmp

from pyromq.speedups.codec cimport Frame, Header, HeaderReader, Output, ReplyWriter, copy_text
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport Channel, FastGuard, FastHandler, ParkedReplies, Passed
from pyromq.speedups.kernels cimport ends_with, is_same, prefetch
from pyromq.speedups.records cimport Counter, LogTail, QueueTail, Record, put_record, tags_code_of
from pyromq.speedups.timed cimport TimedSends


cdef class SendPlan:
    """How sends to one topic are stored, as Python code has decided.

    `queues` maps queue ids below `queue_count` to the topic's queues; the store fills this table. None before the
    topic's first message: then only scheduled messages are stored. `takes_times`: messages may have a delivery time.
    """

    def __init__(
        self, str topic, dict queues, int queue_count, *, int more_flags, Counter counter, bint takes_times
    ):
        self.topic = topic
        self.encoded = topic.encode()
        self.queues = queues
        self.queue_count = queue_count
        self.more_flags = more_flags
        self.counter = counter
        self.takes_times = takes_times
        self.tails = [None] * queue_count


cdef class Sends(FastHandler):
    """Stores the sends of one request code.

    `plan_for(topic)` returns a plan, or None if the plain path must answer. Plans are valid while `version()` returns
    the same object. While `busy` has entries, the plain path answers all sends. While `parked` (waiting pulls) has
    entries, `arrived(topic, queue id, log offset, tags code)` is called for every message. Replies that wait for the
    disk or for replicas are parked in `unconfirmed`.
    """

    cdef HeaderReader _reader
    cdef LogTail _log
    cdef object _plan_for, _version, _now_ms, _arrived
    cdef dict _busy, _parked, _plans
    cdef bytes _pair, _joined_pair
    cdef ReplyWriter _writer
    cdef object _seen
    cdef SendPlan _last
    cdef int64_t _now
    cdef Py_ssize_t _max_bytes
    cdef bytes _store_address
    cdef object _store
    cdef object _writer_for
    cdef char _text[MAX_TEXT + 1]
    cdef Header _header
    cdef Passed _passed
    cdef FastGuard _guard  # None if permissions are off
    cdef TimedSends _timed
    cdef ParkedReplies _unconfirmed
    cdef char* _wish  # end of the name of the delivery time property; NULL without such a property
    cdef bint _waits  # True if the sender waits until the message is confirmed

    def __init__(
        self, HeaderReader reader, LogTail log, *, plan_for, version, dict busy, dict parked, arrived, now_ms, store,
        writer_for, TimedSends timed, str cluster_pair, Py_ssize_t max_message_bytes, ParkedReplies unconfirmed not None,
        FastGuard guard=None
    ):
        self.code = reader.code
        self._reader = reader
        self._log = log
        self._plan_for = plan_for
        self._version = version
        self._busy = busy
        self._parked = parked
        self._arrived = arrived
        self._now_ms = now_ms
        self._store = store
        self._writer_for = writer_for
        self._timed = timed
        self._pair = cluster_pair.encode()
        self._joined_pair = b"\x02" + self._pair
        self._max_bytes = max_message_bytes
        self._unconfirmed = unconfirmed
        self._guard = guard
        self._plans = {}
        self._seen = None
        self._last = None
        self._writer = None
        self._store_address = b""

    cdef bint begin(self) except -1:
        version = self._version()
        if version is not self._seen:
            self._seen = version
            self._plans.clear()
            self._last = None
            self._store_address = self._store.store_address
            self._writer = self._writer_for()
            self._timed.renew()
        self._timed.begin()
        if self._guard is not None:
            self._guard.begin()
        self._now = self._now_ms()
        if not self._unconfirmed.begin():
            return False
        return PyDict_Size(self._busy) == 0 and PyBytes_GET_SIZE(self._store_address) == IPV4_BYTES

    cdef bint end_turn(self) except -1:
        self.has_stirred = self._unconfirmed.end_turn() or self.has_stirred
        return True

    cdef bint answer(self, const Frame* frame, Channel channel, Output output) except -1:
        cdef Header* header = &self._header
        cdef Record record
        cdef SendPlan plan
        cdef QueueTail queue
        cdef int64_t queue_id
        if self._unconfirmed.room <= 0:
            return False
        if frame.body_size == 0 or frame.body_size > self._max_bytes or not self._reader.read(frame, header):
            return False
        if header.fields[SEND_TOPIC].is_escaped or (header.fields[SEND_BATCH].at != NULL and header.fields[SEND_BATCH].number):
            return False
        if self._guard is not None and not self._guard.passes(frame, header, channel.address, &self._passed):
            return False
        plan = self._plan(header.fields[SEND_TOPIC].at, header.fields[SEND_TOPIC].size)
        if plan is None:
            return False
        queue_id = header.fields[SEND_QUEUE_ID].number
        if not 0 <= queue_id < plan.queue_count:
            return False
        prefetch(&plan.counter.times)  # changed last; with many topics, the counter is in no processor cache
        queue = plan.tails[queue_id]
        if queue is not None and queue.at != NULL:
            prefetch(queue.at + (queue.max_offset - queue.base) * QUEUE_ENTRY_BYTES)
        if not self._fill(&record, header, NULL if self._guard is None else &self._passed):
            return False
        record.body = frame.body
        record.body_size = frame.body_size
        record.topic = PyBytes_AS_STRING(plan.encoded)
        record.topic_size = PyBytes_GET_SIZE(plan.encoded)
        record.sys_flag |= plan.more_flags
        record.born_address = channel.address
        record.store_address = PyBytes_AS_STRING(self._store_address)
        if self._wish != NULL:
            return plan.takes_times and self._file(plan, &record, header, channel, output)
        queue = self._queue(plan, queue_id)
        if queue is None or not put_record(self._log, queue, &record, self._now):
            return False
        self._count(plan.counter, &record)
        self._reply(self._writer, &record, header, channel, output)
        if PyDict_Size(self._parked):
            self.has_stirred = True
            self._arrived(plan.topic, queue_id, record.log_offset, record.tags_code)
        return True

    cdef bint _file(self, SendPlan plan, Record* record, const Header* header, Channel channel, Output output) except -1:
        """Store a scheduled message and write the reply. Return False, with nothing stored, if this is impossible."""
        cdef TimedSends timed = self._timed
        if not timed.put(self._log, record, self._wish, plan.topic, self._now):
            return False
        self._count(timed.counter, record)
        self._reply(timed.writer, record, header, channel, output)
        if timed.has_stirred:
            timed.has_stirred = False
            self.has_stirred = True
        if PyDict_Size(self._parked):
            self.has_stirred = True
            self._arrived(timed.topic, record.queue_id, record.log_offset, record.tags_code)
        return True

    cdef inline void _count(self, Counter counter, const Record* record) noexcept:
        counter.times += 1
        counter.count += 1
        counter.size += record.size

    cdef inline int _reply(
        self, ReplyWriter writer, const Record* record, const Header* header, Channel channel, Output output
    ) except -1:
        cdef int64_t values[4]
        cdef ParkedReplies unconfirmed = self._unconfirmed
        cdef bint is_parked = unconfirmed.is_on and (self._waits or unconfirmed.holds_all)
        cdef Py_ssize_t size = 0
        values[0] = record.log_offset
        values[1] = header.fields[SEND_QUEUE_ID].number
        values[2] = record.queue_offset
        values[3] = <int64_t> &self._timed.handle  # used only by replies with a recall handle
        if is_parked:
            output = unconfirmed.replies
        if not header.flag & ONE_WAY:
            size = output.end - output.begin
            writer.write(output, values, header, 0)
            size = output.end - output.begin - size
        if is_parked:
            unconfirmed.park(channel, size, record.log_offset + record.size)
        return 0

    cdef QueueTail _queue(self, SendPlan plan, int64_t queue_id):
        """Return the queue of a topic with this id; None if the queue does not exist yet."""
        cdef QueueTail queue = plan.tails[queue_id]
        if queue is None:
            if plan.queues is None:  # the plain path creates the queues; the next send gets a new plan
                del self._plans[plan.encoded]
                self._last = None
                return None
            queue = plan.queues.get(queue_id)
            plan.tails[queue_id] = queue
        return queue

    cdef SendPlan _plan(self, const char* topic, Py_ssize_t size):
        """Return the plan of a topic; None if the plain path must answer."""
        cdef SendPlan last = self._last
        cdef SendPlan plan
        if last is not None and PyBytes_GET_SIZE(last.encoded) == size and is_same(
            PyBytes_AS_STRING(last.encoded), topic, size
        ):
            return last
        name = PyBytes_FromStringAndSize(topic, size)
        cdef PyObject* found = PyDict_GetItem(self._plans, name)
        if found != NULL:
            plan = <SendPlan> found
        else:
            plan = self._plan_for(name.decode("utf-8"))
            if plan is None:  # not cached: clients could fill the memory with names
                return None
            self._plans[plan.encoded] = plan  # one copy of the name, for the lookup and for records
        self._last = plan
        return plan

    cdef bint _fill(self, Record* record, Header* header, const Passed* passed) noexcept:
        """Fill a record from a header. Return False if the plain path must answer."""
        cdef int64_t number
        number = header.fields[SEND_SYS_FLAG].number
        record.sys_flag = <int32_t> number
        if number != record.sys_flag:
            return False
        number = header.fields[SEND_FLAG].number
        record.flag = <int32_t> number
        if number != record.flag:
            return False
        number = header.fields[SEND_RECONSUME_TIMES].number if header.fields[SEND_RECONSUME_TIMES].at != NULL else 0
        record.reconsume_times = <int32_t> number
        if number != record.reconsume_times:
            return False
        record.queue_id = <int> header.fields[SEND_QUEUE_ID].number
        record.born_ms = header.fields[SEND_BORN_MS].number
        record.prepared_offset = 0
        record.properties = self._text
        record.properties_size = 0
        if header.fields[SEND_PROPERTIES].at != NULL:
            if header.fields[SEND_PROPERTIES].size > MAX_TEXT:
                return False
            if passed != NULL and passed.copy != NULL and passed.copied == SEND_PROPERTIES:
                record.properties = passed.copy
                record.properties_size = passed.copy_size
            else:
                record.properties_size = copy_text(&header.fields[SEND_PROPERTIES], self._text)
        return self._read_properties(record)

    cdef bint _read_properties(self, Record* record) noexcept:
        """Remove the property WAIT and apply it. Find the tags and the delivery time.

        Return False for other properties that change how a message is stored, and for unusual forms.
        """
        cdef char* text = <char*> record.properties  # a copy of the properties, which may be changed
        cdef char* end = text + record.properties_size
        cdef char* p = text
        cdef char* q
        cdef char* name
        cdef char* tags = NULL
        cdef bint has_waited = False
        self._wish = NULL
        self._waits = True
        while True:
            p = <char*> memchr(p, NAME_VALUE, end - p)
            if p == NULL:
                break
            if ends_with(text, p, TAGS, TAGS_SIZE):
                tags = p - TAGS_SIZE
            elif ends_with(text, p, WAIT, WAIT_SIZE):
                name = p - WAIT_SIZE
                if has_waited or (name > text and name[-1] != PAIRS):
                    return False
                has_waited = True
                q = <char*> memchr(p, PAIRS, end - p)
                self._waits = is_true(p + 1, end if q == NULL else q)
                if q == NULL:
                    end = name
                    break
                memmove(name, q + 1, end - q - 1)
                end -= q + 1 - name
                p = name
                continue
            elif (
                ends_with(text, p, DELAY, DELAY_SIZE)
                or ends_with(text, p, TRANSACTION, TRANSACTION_SIZE)
                or ends_with(text, p, TIMER_CANCELS, TIMER_CANCELS_SIZE)
            ):
                return False
            elif (
                ends_with(text, p, TIMER_DELAY_SECONDS, TIMER_DELAY_SECONDS_SIZE)
                or ends_with(text, p, TIMER_DELAY_MS, TIMER_DELAY_MS_SIZE)
                or ends_with(text, p, TIMER_DELIVER_MS, TIMER_DELIVER_MS_SIZE)
            ):
                if self._wish != NULL:
                    return False
                self._wish = p
            p += 1
        record.properties_size = end - text
        if end == text or end[-1] == PAIRS:
            record.more = PyBytes_AS_STRING(self._pair)
            record.more_size = PyBytes_GET_SIZE(self._pair)
        else:
            record.more = PyBytes_AS_STRING(self._joined_pair)
            record.more_size = PyBytes_GET_SIZE(self._joined_pair)
        record.tags_code = 0
        return tags == NULL or tags_code_of(text, tags, end, &record.tags_code)


cdef inline bint is_true(const char* text, const char* end) noexcept nogil:
    """Return True if a value of the property WAIT is empty or `true`: the sender then waits for a confirmed message."""
    return text == end or (end - text == 4 and strncasecmp(text, b"true", 4) == 0)
