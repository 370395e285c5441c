# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot path of clients: writes request frames from templates and properties of plain messages, reads replies.

Each class does the work of Python code, and leaves unusual cases to that code (the plain path).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next, PyDict_SetItem
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8, PyUnicode_FindChar, PyUnicode_GET_LENGTH
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp, memcpy, strlen
from posix.unistd cimport getpid

from pyromq.speedups.codec cimport Field, json_blank_end, json_int, json_text, text_of, whole_number, write_number
from pyromq.speedups.constants cimport *
from pyromq.speedups.kernels cimport get_u32, plain_end, put_u32

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)
    bint PyUnicode_IS_ASCII(object text)
    ctypedef int (*SetSlot)(object, object, object) except -1
    ctypedef struct PyTypeObject:
        SetSlot tp_descr_set
    PyTypeObject* Py_TYPE(object value)

cdef enum:
    MAX_HOLES = 16
    MAX_FIELDS = 16
    MAX_NAMES = 16  # limit of names of reply fields that are cached as `str`
    WRITTEN_EACH = 32  # requests per write: the broker can work meanwhile; 10 % faster with 64 in flight
    PLAIN_PROPERTIES = 4096  # limit of properties written here (bytes): far below the broker's limit


cdef class RequestWriter:
    """Writes request frames from a JSON header with holes `%d` and `%b`, as Python's `%` does.

    The last two holes are flag and opaque (the request's number).
    """

    cdef bytes _line
    cdef list _texts
    cdef Py_ssize_t _count
    cdef Py_ssize_t _size  # bytes of the header outside the holes
    cdef bint _is_text[MAX_HOLES]
    cdef bint _is_plain

    def __init__(self, bytes line):
        self._line = line
        self._texts = []
        self._is_plain = True
        text, rest = b"", line
        while True:
            before, found, rest = rest.partition(b"%")
            text += before
            if not found:
                break
            if rest[:1] == b"%":
                text += b"%"
            elif rest[:1] in (b"d", b"b") and len(self._texts) < MAX_HOLES:
                self._is_text[len(self._texts)] = rest[:1] == b"b"
                self._texts.append(text)
                text = b""
            else:
                self._is_plain = False
            rest = rest[1:]
        self._count = len(self._texts)
        self._texts.append(text)
        self._size = sum(map(len, self._texts))

    def frame(self, tuple values, int flag, int opaque, bytes body):
        """Return the request frame; None if Python's `%` must write the frame, as template or values are unusual."""
        cdef int64_t numbers[MAX_HOLES]
        cdef PyObject* texts[MAX_HOLES]
        cdef Py_ssize_t number
        cdef object value
        if not self._is_plain or PyTuple_GET_SIZE(values) != self._count - 2:
            return None
        for number in range(self._count - 2):
            value = <object> PyTuple_GET_ITEM(values, number)
            if self._is_text[number]:
                if type(value) is not bytes:
                    return None
                texts[number] = <PyObject*> value
            elif type(value) is int and -(1 << 62) < value < 1 << 62:
                numbers[number] = value
            else:
                return None
        numbers[self._count - 2] = flag
        numbers[self._count - 1] = opaque
        return self.fill(numbers, texts, body)

    cdef bytes fill(self, const int64_t* numbers, PyObject** texts, bytes body):
        """Return the request frame. The value of hole n is `numbers[n]`, or `texts[n]` for a `%b`."""
        cdef char digits[MAX_HOLES * 20]
        cdef const char* at[MAX_HOLES]
        cdef Py_ssize_t sizes[MAX_HOLES]
        cdef char* p = digits
        cdef Py_ssize_t number, size = self._size, body_size = PyBytes_GET_SIZE(body)
        for number in range(self._count):
            if self._is_text[number]:
                at[number] = PyBytes_AS_STRING(<object> texts[number])
                sizes[number] = PyBytes_GET_SIZE(<object> texts[number])
            else:
                at[number] = p
                p = write_number(p, numbers[number])
                sizes[number] = p - at[number]
            size += sizes[number]
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, 8 + size + body_size)
        p = PyBytes_AS_STRING(frame)
        put_u32(p, <uint32_t> (4 + size + body_size))
        put_u32(p + 4, <uint32_t> size)
        p = _copied(p + 8, self._texts[0])
        for number in range(self._count):
            memcpy(p, at[number], sizes[number])
            p = _copied(p + sizes[number], self._texts[number + 1])
        memcpy(p, PyBytes_AS_STRING(body), body_size)
        return frame


cdef inline char* _copied(char* p, bytes text) noexcept:
    memcpy(p, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return p + PyBytes_GET_SIZE(text)


cdef struct Answer:
    int code
    int opaque
    int flag
    int version
    Field remark  # `at` is NULL without a remark
    const char* body
    Py_ssize_t body_size
    int count
    Field names[MAX_FIELDS]
    Field values[MAX_FIELDS]


cdef class AnswerReader:
    """Reads replies with JSON headers as `FrameSplitter` and `decode_response` do. `response` is the class to make."""

    cdef object _response
    cdef Py_ssize_t _max
    cdef list _names
    cdef list _raw_names

    def __init__(self, response, Py_ssize_t max_frame_bytes):
        self._response = response
        self._max = max_frame_bytes
        self._names = []
        self._raw_names = []

    def deliver(self, bytes data, dict waiting, complete):
        """Complete the calls whose replies are at the beginning of `data`, in order.

        Return the position of the first bytes that the plain path must read. A call of `waiting` (by opaque) that is a
        `FastSend` is completed here if its message is stored. For other replies `complete(response)` is called.
        """
        cdef const char* start = PyBytes_AS_STRING(data)
        cdef const char* p = start
        cdef const char* end = start + PyBytes_GET_SIZE(data)
        cdef Py_ssize_t size, header_size
        cdef Answer answer
        while end - p >= 8:
            size = 4 + <Py_ssize_t> get_u32(p)
            header_size = get_u32(p + 4)  # above any frame size for another serialization than JSON
            if size > self._max or header_size > size - 8 or size > end - p:
                break
            if 0 < end - p - size < 8:  # the splitter judges such bytes by whether they follow a frame
                break
            answer.body = p + 8 + header_size
            answer.body_size = size - 8 - header_size
            if not _read_answer(p + 8, answer.body, &answer):
                break
            p += size
            if answer.code == 0:
                call = waiting.get(answer.opaque)
                if type(call) is FastSend and (<FastSend> call).stored(&answer):
                    continue
            complete(self._made(&answer))
        return p - start

    cdef object _made(self, const Answer* answer):
        cdef dict fields = {}
        cdef int number
        for number in range(answer.count):
            PyDict_SetItem(fields, self._name(&answer.names[number]), text_of(&answer.values[number]))
        return self._response(
            answer.code,
            answer.opaque,
            answer.flag,
            answer.version,
            text_of(&answer.remark),
            fields,
            PyBytes_FromStringAndSize(answer.body, answer.body_size),
        )

    cdef object _name(self, const Field* name):
        """Return the name of a field as `str`; the first `MAX_NAMES` names are cached."""
        cdef Py_ssize_t number, count = len(self._names)
        cdef bytes raw
        for number in range(count):
            raw = <bytes> self._raw_names[number]
            if PyBytes_GET_SIZE(raw) == name.size and memcmp(PyBytes_AS_STRING(raw), name.at, name.size) == 0:
                return self._names[number]
        text = PyUnicode_DecodeUTF8(name.at, name.size, NULL)
        if count < MAX_NAMES:
            self._names.append(text)
            self._raw_names.append(name.at[: name.size])
        return text


cdef bint _read_answer(const char* p, const char* end, Answer* answer) noexcept nogil:
    """Read the JSON header from `p` to `end` into `answer`. Return False if the plain path must read it."""
    cdef int seen = 0, bit
    cdef Field name, value
    answer.code = answer.opaque = answer.flag = answer.version = answer.count = 0
    answer.remark.at = NULL
    p = json_blank_end(p, end)
    if p >= end or p[0] != c"{":
        return False
    while True:
        p = _member(p + 1, end, &name)
        if p == NULL:
            return False
        if _is(&name, b"extFields", 9):
            bit = 1
            p = _read_fields(p, end, answer)
        elif _is(&name, b"code", 4):
            bit = 2
            p = json_int(p, end, &answer.code)
        elif _is(&name, b"opaque", 6):
            bit = 4
            p = json_int(p, end, &answer.opaque)
        elif _is(&name, b"flag", 4):
            bit = 8
            p = json_int(p, end, &answer.flag)
        elif _is(&name, b"version", 7):
            bit = 16
            p = json_int(p, end, &answer.version)
        elif p[0] != c'"':
            return False
        elif _is(&name, b"remark", 6):
            bit = 32
            p = json_text(p + 1, end, &answer.remark)
        elif _is(&name, b"language", 8):
            bit = 64
            p = json_text(p + 1, end, &value)
        elif _is(&name, b"serializeTypeCurrentRPC", 23):
            bit = 128
            p = json_text(p + 1, end, &value)
        else:
            return False
        if p == NULL or seen & bit:
            return False
        seen |= bit
        p = json_blank_end(p, end)
        if p >= end:
            return False
        if p[0] == c"}":
            return json_blank_end(p + 1, end) == end and answer.flag & RESPONSE
        if p[0] != c",":
            return False


cdef inline bint _is(const Field* field, const char* text, Py_ssize_t size) noexcept nogil:
    return field.size == size and memcmp(field.at, text, size) == 0


cdef inline const char* _member(const char* p, const char* end, Field* name) noexcept nogil:
    """Read a JSON name and its colon. Return the address of the value; NULL if there is none before `end`."""
    p = json_blank_end(p, end)
    if p >= end or p[0] != c'"':
        return NULL
    p = json_text(p + 1, end, name)
    if p == NULL or name.is_escaped:
        return NULL
    p = json_blank_end(p, end)
    if p >= end or p[0] != c":":
        return NULL
    p = json_blank_end(p + 1, end)
    return p if p < end else NULL


cdef const char* _read_fields(const char* p, const char* end, Answer* answer) noexcept nogil:
    """Read a JSON object whose values are strings. Return the address after the object; NULL for anything else."""
    if p[0] != c"{":
        return NULL
    p = json_blank_end(p + 1, end)
    if p < end and p[0] == c"}":
        return p + 1
    while answer.count < MAX_FIELDS:
        p = _member(p, end, &answer.names[answer.count])
        if p == NULL or p[0] != c'"':
            return NULL
        p = json_text(p + 1, end, &answer.values[answer.count])
        if p == NULL:
            return NULL
        answer.count += 1
        p = json_blank_end(p, end)
        if p >= end:
            return NULL
        if p[0] == c"}":
            return p + 1
        if p[0] != c",":
            return NULL
        p += 1
    return NULL


cdef class ResultMaker:
    """Makes objects of the frozen class `SendResult` by filling their slots, in the order of the class's slots."""

    cdef object _class
    cdef object ok  # value of the first slot (status) of a stored message
    cdef tuple _slots

    def __init__(self, result_class, ok):
        self._class = result_class
        self.ok = ok
        self._slots = tuple([getattr(result_class, name) for name in result_class.__slots__])

    cdef object make(self, tuple values):
        result = self._class.__new__(self._class)
        cdef Py_ssize_t number
        for number in range(PyTuple_GET_SIZE(values)):
            slot = self._slots[number]
            Py_TYPE(slot).tp_descr_set(slot, result, values[number])
        return result


cdef class PropertyWriter:
    """Writes the properties of plain messages as `prepare` does: messages without flag, delay or delivery time.

    `message_class` is `Message`. `reserved` are the property names that applications must not use.
    """

    cdef object _class
    cdef object _reserved

    def __init__(self, message_class, frozenset reserved):
        self._class = message_class
        self._reserved = reserved

    cpdef bytes text(self, message, next_id, Py_ssize_t max_bytes, Py_ssize_t compress_from_bytes):
        """Return the properties of a message, escaped for JSON; None if `prepare` must handle the message.

        A message without an id gets the result of `next_id()` as its id. `max_bytes` is the limit of a body. Bodies of
        `compress_from_bytes` or more are left to `prepare`, which compresses them.
        """
        cdef char buffer[PLAIN_PROPERTIES]
        cdef char* p = buffer
        cdef char* end = buffer + PLAIN_PROPERTIES
        cdef PyObject* name
        cdef PyObject* value
        cdef Py_ssize_t position = 0
        if type(message) is not self._class:
            return None
        body = message.body
        if type(body) is not bytes or not 0 < PyBytes_GET_SIZE(body) <= max_bytes:
            return None
        if PyBytes_GET_SIZE(body) >= compress_from_bytes:
            return None
        properties, keys, tags = message.properties, message.keys, message.tags
        wait_stored, message_id = message.wait_stored, message.message_id
        if (
            type(properties) is not dict
            or type(keys) is not tuple
            or not (tags is None or type(tags) is str)
            or not (wait_stored is True or wait_stored is False)
            or not (message_id is None or type(message_id) is str and message_id)
            or not _is_zero(message.flag)
            or not _is_zero(message.delay_level)
            or message.deliver_at is not None
            or message.delay is not None
        ):
            return None
        while PyDict_Next(properties, &position, &name, &value):
            if not self._is_free(<object> name, <object> value):
                return None
            p = _add_mark(_add(p, end, <object> name), end, c"1")
            p = _add_mark(_add(p, end, <object> value), end, c"2")
        if keys:
            p = _add_keys(p, end, keys)
        if tags and ("||" in <str> tags or (<str> tags).strip() != tags):
            return None
        if p == NULL:
            return None
        if message_id is None:
            message_id = next_id()
        p = _add_mark(_add(_add_name(p, end, UNIQUE_KEY), end, message_id), end, c"2")
        p = _add_literal(_add_name(p, end, WAIT), end, b"true" if wait_stored is True else b"false")
        if tags:
            p = _add(_add_name(_add_mark(p, end, c"2"), end, TAGS), end, tags)
        if p == NULL:
            return None
        message.message_id = message_id
        return PyBytes_FromStringAndSize(buffer, p - buffer)

    cdef bint _is_free(self, name, value) except -1:
        return (
            type(name) is str
            and type(value) is str
            and not _is_blank(<str> name)
            and not _is_blank(<str> value)
            and name not in <frozenset> self._reserved
        )


cdef inline bint _is_zero(value) noexcept:
    return type(value) is int and <object> value == 0


cdef inline bint _is_blank(str text) except -1:
    cdef Py_ssize_t size
    cdef const char* p
    if not PyUnicode_IS_ASCII(text):
        return not text.strip()
    p = PyUnicode_AsUTF8AndSize(text, &size)
    while size and 0 <= p[0] <= 0x20:  # the plain path handles control characters
        p += 1
        size -= 1
    return size == 0


cdef char* _add_keys(char* p, const char* end, tuple keys) noexcept:
    """Write the property KEYS. Write nothing if the only key is empty. Return NULL if the plain path must write it."""
    cdef Py_ssize_t number, count = PyTuple_GET_SIZE(keys)
    for number in range(count):
        key = <object> PyTuple_GET_ITEM(keys, number)
        if type(key) is not str or PyUnicode_FindChar(key, c" ", 0, PyUnicode_GET_LENGTH(key), 1) >= 0:
            return NULL  # the plain path refuses such a key
    if count == 1 and not <object> PyTuple_GET_ITEM(keys, 0):
        return p
    p = _add_name(p, end, KEYS)
    for number in range(count):
        if number:
            p = _add_literal(p, end, b" ")
        p = _add(p, end, <object> PyTuple_GET_ITEM(keys, number))
    return _add_mark(p, end, c"2")


cdef inline char* _add_name(char* p, const char* end, const char* name) noexcept:
    return _add_mark(_add_literal(p, end, name), end, c"1")


cdef inline char* _add_mark(char* p, const char* end, char digit) noexcept:
    """Write the separator of name and value (`digit` 1) or of two properties (2), escaped for JSON."""
    p = _add_literal(p, end, b"\\u0000")
    if p != NULL:
        (p - 1)[0] = digit
    return p


cdef inline char* _add_literal(char* p, const char* end, const char* text) noexcept:
    cdef Py_ssize_t size = strlen(text)
    if p == NULL or size > end - p:
        return NULL
    memcpy(p, text, size)
    return p + size


cdef char* _add(char* p, const char* end, object text) noexcept:
    """Write a string escaped for JSON. Return NULL if it may not fit, or if the plain path must write it."""
    cdef Py_ssize_t size
    cdef const char* q
    cdef const char* plain
    cdef const char* text_end
    if p == NULL:
        return NULL
    q = PyUnicode_AsUTF8AndSize(text, &size)
    if q == NULL:  # the text has half of a surrogate pair
        PyErr_Clear()
        return NULL
    if 2 * size > end - p:
        return NULL
    text_end = q + size
    while True:
        plain = plain_end(q, text_end)
        memcpy(p, q, plain - q)
        p += plain - q
        q = plain
        if q == text_end:
            return p
        if 0 <= q[0] < 0x20:
            return NULL
        if <unsigned char> q[0] < 0x80:  # a quote or a backslash
            p[0] = c"\\"
            p += 1
        p[0] = q[0]
        p += 1
        q += 1


cdef class NextId:
    """Makes the same message ids as `UniqueIds` at time `now_ms`."""

    cdef int64_t now_ms
    cdef object _ids
    cdef object _counter
    cdef int64_t _head_ms
    cdef int _process
    cdef bytes _head

    def __init__(self, ids):
        self._ids = ids
        self._counter = ids.counter
        self._head_ms = -1

    def __call__(self):
        cdef int process = getpid(), number
        cdef unsigned int count
        cdef Py_ssize_t size
        cdef char text[80]
        if self._head_ms != self.now_ms or self._process != process:
            self._head = self._ids.head(self.now_ms).encode("ascii")
            self._head_ms = self.now_ms
            self._process = process
        size = PyBytes_GET_SIZE(self._head)
        memcpy(text, PyBytes_AS_STRING(self._head), size)
        count = next(self._counter) & 0xFFFF
        for number in range(4):
            text[size + 3 - number] = b"0123456789ABCDEF"[count & 15]
            count >>= 4
        return PyUnicode_DecodeASCII(text, size + 4, NULL)


cdef class Place:
    """How messages to one queue are sent: connection, writer of the requests, and signer (None: unsigned requests)."""

    cdef object queue
    cdef int64_t queue_id
    cdef object channel
    cdef object session
    cdef dict waiting
    cdef list output
    cdef object wake
    cdef RequestWriter writer
    cdef object signer
    cdef double timeout  # seconds


cdef class Lane:
    """The `Place` of each writable queue of a topic's route; None for a queue not learned yet."""

    cdef object route
    cdef list places


cdef class FastOutbox:
    """Sends plain messages as the `Outbox` does, if route, connection and writer of the queue are known.

    The `Outbox` handles all other messages, and all replies other than success.
    """

    cdef object _outbox
    cdef dict _routes
    cdef dict _stalled
    cdef dict _turns
    cdef list _room
    cdef dict _lanes
    cdef PropertyWriter _properties
    cdef ResultMaker _results
    cdef object _clock
    cdef NextId _next_id
    cdef object _create_future
    cdef Py_ssize_t _max_bytes
    cdef Py_ssize_t _compress_from_bytes
    cdef bint _counts_bytes

    def __init__(self, outbox, config, *, clock, tables, room, properties, results, ids, create_future):
        """`tables` are three dicts by topic: routes, stalled messages, and number of the next queue."""
        self._outbox = outbox
        self._clock = clock
        self._routes, self._stalled, self._turns = tables
        self._room = room
        self._lanes = {}
        self._properties = properties
        self._results = results
        self._next_id = NextId(ids)
        self._create_future = create_future
        self._max_bytes = config.max_message_bytes
        self._compress_from_bytes = config.compress_from_bytes
        self._counts_bytes = config.max_pending_bytes is not None

    def learn(self, route, queue, channel, writer, double timeout):
        """Remember channel, writer and timeout (seconds) for messages to a queue. `route` is the topic's current route.
        """
        cdef Lane lane = self._lanes.get(queue.topic)
        cdef Place place
        parts = channel.session.for_fast_path()
        if parts is None:
            return
        if lane is None or lane.route is not route:
            lane = self._lanes[queue.topic] = Lane()
            lane.route = route
            lane.places = [None] * len(route.writable)
        if queue not in route.writable:  # the queue was chosen before the route changed
            return
        number = route.writable.index(queue)
        place = lane.places[number]
        if place is None or place.channel is not channel:
            place = lane.places[number] = Place()
            place.queue = queue
            place.queue_id = queue.queue_id
            place.channel = channel
            place.session = channel.session
            place.waiting, place.output, place.wake, place.signer = parts
            place.writer = writer
            place.timeout = timeout

    def forget(self, topic):
        """Forget channels and writers of a topic's queues."""
        self._lanes.pop(topic, None)

    def send(self, message, retry_codes, bint at_once):
        """Send a message and return the future of its result; None, with nothing sent, if the `Outbox` must send it."""
        cdef Lane lane
        cdef Place place
        cdef FastSend sent
        cdef int64_t numbers[7]
        cdef PyObject* texts[7]
        cdef Py_ssize_t turn, opaque
        if self._stalled or type(message) is not self._properties._class:
            return None
        topic = message.topic
        if type(topic) is not str:
            return None
        lane = self._lanes.get(topic)
        if lane is None or self._routes.get(topic) is not lane.route:
            return None
        turns = self._turns.get(topic)
        if turns is None:
            return None
        turn = turns
        place = lane.places[turn % len(lane.places)]
        if place is None or place.session.closed:
            return None
        now = self._clock.now_ms()
        self._next_id.now_ms = now
        text = self._properties.text(message, self._next_id, self._max_bytes, self._compress_from_bytes)
        if text is None:
            return None
        opaque = (place.session.opaque + 1) & 0x7FFFFFFF
        numbers[0] = place.queue_id
        numbers[1] = numbers[3] = numbers[5] = 0
        numbers[2] = now
        texts[4] = <PyObject*> text
        numbers[6] = opaque
        frame = place.writer.fill(numbers, texts, <bytes> message.body)
        if place.signer is not None:
            frame = place.signer.sign(frame)
            if frame is None:
                return None
        self._turns[topic] = turn + 1
        place.session.opaque = opaque
        sent = FastSend.__new__(FastSend)
        sent.outbox = self
        sent.queue = place.queue
        sent.waiting = place.waiting
        sent.message_id = message.message_id
        sent.body = message.body
        sent.property_text = text
        sent.retry_codes = retry_codes
        sent.at_once = at_once
        sent.started = self._clock.monotonic()
        sent.deadline = sent.started + place.timeout
        sent.timeout = place.timeout
        sent.future = self._create_future()
        self._outbox.in_flight += 1
        if self._counts_bytes:
            self._outbox.pending_bytes += PyBytes_GET_SIZE(<bytes> sent.body)
        is_first = not place.waiting
        place.waiting[opaque] = sent
        place.output.append(frame)
        if is_first:
            place.channel.watch()
        if at_once:
            place.channel.flush()
        elif len(place.output) == 1:
            place.wake()
        elif len(place.output) >= WRITTEN_EACH:
            place.channel.flush()
        return sent.future

    cdef object left(self, FastSend sent):
        self._outbox.in_flight -= 1
        if self._counts_bytes:
            self._outbox.pending_bytes -= PyBytes_GET_SIZE(<bytes> sent.body)
        if self._room:
            self._outbox.tell_room()


@cython.freelist(256)
cdef class FastSend:
    """A message sent by the `FastOutbox` whose reply has not arrived yet."""

    cdef FastOutbox outbox
    cdef dict waiting
    cdef readonly object queue
    cdef readonly object message_id
    cdef readonly object body
    cdef readonly object property_text
    cdef readonly object retry_codes
    cdef readonly object future
    cdef readonly bint at_once
    cdef readonly double started
    cdef readonly double deadline
    cdef readonly double timeout

    code = SEND_CODE

    def answered(self, result):
        """Let the `Outbox` handle the result: an error, or a reply that `stored` does not accept."""
        self.outbox._outbox.take_over(self, result)

    cdef bint stored(self, const Answer* answer) except -1:
        """Complete the send with a reply of code 0. Return False if the plain path must read the reply."""
        cdef int64_t queue_id = -1, queue_offset = -1
        cdef const Field* field
        cdef int number, seen = 0, bit
        cdef object offset_id = None, transaction_id = None, recall_handle = None
        for number in range(answer.count):
            field = &answer.values[number]
            if _is(&answer.names[number], MESSAGE_ID_FIELD, MESSAGE_ID_FIELD_SIZE):
                bit = 1
                offset_id = text_of(field)
            elif _is(&answer.names[number], QUEUE_ID_FIELD, QUEUE_ID_FIELD_SIZE):
                bit = 2
                if field.is_escaped or not whole_number(field.at, field.size, &queue_id):
                    return False
            elif _is(&answer.names[number], QUEUE_OFFSET_FIELD, QUEUE_OFFSET_FIELD_SIZE):
                bit = 4
                if field.is_escaped or not whole_number(field.at, field.size, &queue_offset):
                    return False
            elif _is(&answer.names[number], TRANSACTION_ID_FIELD, TRANSACTION_ID_FIELD_SIZE):
                bit = 8
                transaction_id = text_of(field)
            elif _is(&answer.names[number], RECALL_HANDLE_FIELD, RECALL_HANDLE_FIELD_SIZE):
                bit = 16
                recall_handle = text_of(field)
            else:
                continue
            if seen & bit:
                return False
            seen |= bit
        if seen & 7 != 7 or queue_id != <int64_t> self.queue.queue_id:
            return False
        cdef FastOutbox outbox = self.outbox
        result = outbox._results.make(
            (outbox._results.ok, self.message_id, offset_id, self.queue, queue_offset, transaction_id, recall_handle)
        )
        del self.waiting[answer.opaque]
        outbox.left(self)
        if not self.future.done():
            self.future.set_result(result)
        return True
