# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Serves connections from an epoll set nested in asyncio's event loop.

One turn reads, answers and writes for many connections. A frame with a compiled handler goes to that handler; all other
bytes go to the protocol, in order. A turn ends after half a millisecond, and a connection's part of a turn after a
number of bytes, so that timers and other connections are served too.
"""

import contextlib
import os
import selectors
import socket

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR
from libc.errno cimport errno as c_errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from pyromq.speedups.codec cimport Frame, Output, code_of
from pyromq.speedups.constants cimport *
from pyromq.speedups.fast_path cimport Channel, FastHandler
from pyromq.speedups.kernels cimport get_u32

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    int MSG_NOSIGNAL

cdef enum:
    RECEIVED = 1 << 16  # limit of bytes read from a connection before other connections are served
    KEPT = 1 << 16  # limit of an incomplete frame (bytes) kept here; larger frames go to the protocol in parts
    KEPT_AT_LEAST = 1 << 12  # replaces KEPT once all connections together keep more than `kept_bytes`
    FEW_ROOM = 1 << 16  # limit of the reply buffer (bytes) that a connection keeps between bursts
    MAX_ROOM = 1 << 20  # the same limit for the first `ROOMY` connections with larger replies
    ROOMY = 64  # number of connections that may keep a reply buffer of `MAX_ROOM` bytes
    UNTOLD = 1 << 24  # unsent bytes of all connections, above which each connection calls `pause_writing` at its own limit
    TOLD = 1 << 18  # unsent bytes of one connection before `pause_writing`, and between two calls of it
    WRITTEN = 1 << 18  # unsent bytes of replies from which they are sent before the burst ends
    SHARE = 1 << 20  # limit of replies (bytes) of a connection in one turn
    EVENTS = 4  # epoll events per call; the next turn begins with the remaining events
    TURN_NS = 500_000  # limit of the length of a turn
    LEAST_TURN_NS = 200_000  # least length of a turn: a due timer of the event loop shortens turns

cdef double PLAIN_SECONDS = 0.00025  # limit of a protocol's time before other connections are served

cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t> now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef inline int64_t frame_at(const char* p, Frame* frame) noexcept nogil:
    """Return the length of the frame whose first 8 bytes are at `p`; -1 if the bytes begin no frame."""
    cdef int64_t length = get_u32(p) + <int64_t> 4
    cdef uint32_t mark = get_u32(p + 4)
    if length > MAX_FRAME_BYTES or <int64_t> (mark & 0xFFFFFF) + 8 > length:
        return -1
    frame.serialization = mark >> 24
    frame.header = p + 8
    frame.header_size = mark & 0xFFFFFF
    frame.body = frame.header + frame.header_size
    frame.body_size = length - 8 - frame.header_size
    return length


cdef class Transport(Channel):
    """One connection, with the methods of asyncio's transports. `heard`: last receive (monotonic seconds)."""

    cdef Reactor _reactor
    cdef object _socket, _protocol
    cdef int _fd, _broken
    cdef uint32_t _serial, _events
    cdef Output _output
    cdef char* _kept  # an incomplete frame, or frames that wait for the connection's turn
    cdef Py_ssize_t _kept_size, _kept_room, _passing, _high, _low, _told, _unread
    cdef bint _is_in_burst, _is_reading, _is_closing, _is_closed, _is_paused, _is_behind, _is_queued, _is_roomy, _has_ended
    cdef bint _is_ipv4
    cdef readonly double heard

    def __cinit__(self):
        self._kept = NULL

    def __dealloc__(self):
        free(self._kept)

    def __init__(self, Reactor reactor, sock, protocol, uint32_t serial):
        self._reactor = reactor
        self._socket = sock
        self._protocol = protocol
        self._fd = sock.fileno()
        self._serial = serial
        self._output = Output()
        self._high = 1 << 16
        self._low = self._high >> 2
        self._is_reading = True
        self.heard = reactor._monotonic()

    # -- methods of asyncio's transports

    def get_extra_info(self, name, default=None):
        try:
            if name == "peername":
                return self._socket.getpeername()
            if name == "sockname":
                return self._socket.getsockname()
        except OSError:  # the socket is closed
            return default
        return self._socket if name == "socket" else default

    def set_write_buffer_limits(self, high=None, low=None):
        self._high = 1 << 16 if high is None else high
        self._low = self._high >> 2 if low is None else low

    def get_write_buffer_size(self):
        return len(self._output)

    @property
    def is_within_frame(self):
        """True if an incomplete frame has been received and the protocol has not got it."""
        return self._kept_size > 0 and not self._is_behind

    def is_closing(self):
        return self._is_closing

    def is_reading(self):
        return self._is_reading

    def get_protocol(self):
        return self._protocol

    def set_address(self, bytes packed):
        """Set the peer's packed IPv4 address and port (8 bytes). With another length the protocol gets all frames."""
        self._is_ipv4 = len(packed) == 8
        if self._is_ipv4:
            memcpy(self.address, PyBytes_AS_STRING(packed), 8)

    def write(self, data):
        """Send bytes, at the burst's end if there is one. Bytes that the socket does not accept are kept."""
        cdef Py_buffer view
        cdef ssize_t sent = 0
        if self._is_closing:
            return
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not self._is_in_burst and self._output.begin == self._output.end:
                sent = send(self._fd, view.buf, view.len, MSG_NOSIGNAL)
                if sent < 0:
                    if c_errno != EAGAIN and c_errno != EINTR:
                        self._fail(c_errno)
                        return
                    sent = 0
                if sent == view.len:
                    return
            self._output.append(<char*> view.buf + sent, view.len - sent)
        finally:
            PyBuffer_Release(&view)
        if not self._is_in_burst:
            self._watch()
            self._hold_back()

    def writelines(self, parts):
        self.write(b"".join(parts))

    def pause_reading(self):
        if self._is_reading and not self._is_closing:
            self._is_reading = False
            self._watch()

    def resume_reading(self):
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._watch()
            if self._kept_size:
                self._reactor._come_back(self)

    def can_write_eof(self):
        return True

    def write_eof(self):
        """Send all bytes, then the end of the stream. The peer may still send."""
        self._has_ended = True
        if not self._is_in_burst:
            self._push()

    def close(self):
        """Send all bytes, then close the connection."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._is_in_burst:
            self._flush()
        self._watch()
        if self._output.begin == self._output.end:
            self._end(None)

    def abort(self):
        """Close the connection immediately and drop unsent bytes."""
        self._is_closing = True
        self._output.begin = self._output.end = 0
        self._end(None)

    # -- called by the reactor

    cdef int _watch(self) except -1:
        cdef epoll_event event
        cdef uint32_t events = 0
        if self._is_closed:
            return 0
        if self._is_reading and not self._is_closing and not self._is_behind:
            events |= EPOLLIN
        if self._output.end > self._output.begin and not self._is_in_burst:
            events |= EPOLLOUT
        if events != self._events:
            event.events = events
            event.data.u64 = <uint64_t> self._serial << 32 | <uint32_t> self._fd
            epoll_ctl(self._reactor._epoll, EPOLL_CTL_MOD, self._fd, &event)
            self._events = events
        return 0

    cdef int _flush(self) except -1:
        """Send as many bytes as the socket accepts."""
        cdef Output output = self._output
        cdef ssize_t sent
        while output.begin < output.end:
            sent = send(self._fd, output.data + output.begin, output.end - output.begin, MSG_NOSIGNAL)
            if sent < 0:
                if c_errno == EINTR:
                    continue
                if c_errno != EAGAIN:
                    self._fail(c_errno)
                return 0
            output.begin += sent
        output.begin = output.end = 0
        if output.room > FEW_ROOM:
            if not self._is_roomy and self._reactor._roomy < ROOMY:
                self._is_roomy = True
                self._reactor._roomy += 1
            output.shrink(MAX_ROOM if self._is_roomy else FEW_ROOM)
        return 0

    cdef int _hold_back(self) except -1:
        """Call the protocol's `pause_writing` or `resume_writing` according to the number of unsent bytes.

        `pause_writing` is called again for each `TOLD` more bytes. Up to `TOLD` unsent bytes are ignored while all
        connections together have few: the peer usually reads these bytes soon.
        """
        cdef Py_ssize_t size = self._output.end - self._output.begin
        self._reactor._unread += size - self._unread
        self._unread = size
        if size > self._high and size > self._told and (size > TOLD or self._reactor._unread > UNTOLD):
            self._is_paused = True
            self._told = size + TOLD
            self._protocol.pause_writing()
        elif self._is_paused and size <= self._low:
            self._is_paused = False
            self._told = 0
            self._protocol.resume_writing()
        return 0

    cdef int _push(self) except -1:
        """Send unsent bytes. Then pause or resume the protocol, or close, depending on how many bytes are left."""
        self._flush()
        if self._is_closed:
            return 0
        if self._has_ended and self._output.begin == self._output.end:
            self._has_ended = False
            with contextlib.suppress(OSError):  # the peer has closed
                self._socket.shutdown(socket.SHUT_WR)
        self._watch()
        self._hold_back()
        if self._is_closing and self._output.begin == self._output.end:
            self._end(None)
        else:
            self._go_on_soon()
        return 0

    cdef int put_released(self, const char* reply, Py_ssize_t size) except -1:
        if self._is_closing:
            return 0
        self._output.append(reply, size)
        if self._output.end - self._output.begin > WRITTEN:
            self._flush()
        return 0

    cdef int push_released(self) except -1:
        if self._is_closed:
            return 0
        self._push()
        if not self.parked and not self._is_ipv4 and not self._is_closed:
            self._protocol.flush()  # the protocol drains, and waits for the last reply
        return 0

    cdef int _readable(self) except -1:
        """Read once and answer the received frames."""
        cdef char* buffer = self._reactor._buffer
        cdef Py_ssize_t kept = self._kept_size
        cdef ssize_t size
        if kept:
            memcpy(buffer, self._kept, kept)
        size = recv(self._fd, buffer + kept, KEPT_AT_LEAST if self._reactor._is_full() else RECEIVED, 0)
        if size < 0:
            if c_errno != EAGAIN and c_errno != EINTR:
                self._fail(c_errno)
            return 0
        if size == 0:
            self._finish_reading()
            return 0
        self.heard = self._reactor._turn
        self._keep_nothing()
        self._burst(buffer, kept + size)
        return 0

    cdef int _go_on(self) except -1:
        """Answer the frames that waited for the connection's turn."""
        cdef char* buffer = self._reactor._buffer
        cdef Py_ssize_t kept = self._kept_size
        self._is_behind = False
        if self._is_closing or not self._is_reading or not kept:
            self._watch()
            return 0
        memcpy(buffer, self._kept, kept)
        self._keep_nothing()
        self._burst(buffer, kept)
        return 0

    cdef int _finish_reading(self) except -1:
        """Handle the end of the peer's stream: close, unless the protocol keeps the connection open."""
        cdef Py_ssize_t kept = self._kept_size
        if kept:
            unfinished = PyBytes_FromStringAndSize(self._kept, kept)
            self._keep_nothing()
            self._protocol.data_received(unfinished)  # the protocol logs the incomplete frame
        if self._is_closing:
            return 0
        if self._protocol.eof_received():
            self._is_reading = False
            self._watch()
        else:
            self.close()
        return 0

    cdef int _burst(self, char* data, Py_ssize_t size) except -1:
        """Answer the frames in `data`. Keep an incomplete frame, and frames that must wait for the next turn."""
        cdef Py_ssize_t used
        self._is_in_burst = True
        try:
            used = self._answer(data, size)
        finally:
            self._is_in_burst = False
        if self._broken and not self._is_closed:
            self._fail(self._broken)
        if self._is_closed:
            return 0
        if used < size and not self._is_closing:
            self._keep(data + used, size - used)
        self._push()
        return 0

    cdef int _go_on_soon(self) except -1:
        """If frames wait and all replies are sent, answer these frames in the next turn."""
        if self._is_behind and self._is_reading and self._output.begin == self._output.end:
            self._reactor._come_back(self)
        return 0

    cdef Py_ssize_t _answer(self, char* data, Py_ssize_t size) except -1:
        """Answer frames in `data`. Return how many bytes are answered or given to the protocol."""
        cdef Py_ssize_t at = 0, plain = -1, written = 0
        cdef int64_t length
        cdef Frame frame
        cdef double plain_since = 0  # time when the protocol got its first frames of this burst
        cdef FastHandler handler
        cdef Output output = self._output
        if not self._reactor._handlers or not self._is_ipv4:
            self._deliver(data, size)
            return size
        if self._passing:
            at = min(self._passing, size)
            self._passing -= at
            self._deliver(data, at)
        while size - at >= 8 and not self._is_closing:
            if not self._is_ipv4:  # the protocol takes all frames from now on
                self._deliver(data + at, size - at)
                return size
            if not self._is_reading or written + output.end - output.begin > SHARE:
                self._is_behind = True
                break
            length = frame_at(data + at, &frame)
            if length < 0:  # the protocol logs the invalid bytes
                if plain < 0:
                    plain = at
                at = size
                break
            if length > size - at:
                if length > KEPT or (size - at > KEPT_AT_LEAST and self._reactor._is_full()):
                    if plain < 0:
                        plain = at
                    self._passing = length - (size - at)
                    at = size
                break
            handler = self._reactor._handler_for(&frame)
            if handler is not None:
                if plain >= 0:
                    if not plain_since:
                        plain_since = self._reactor._monotonic()
                    self._deliver(data + plain, at - plain)
                    plain = -1
                    if self._is_closing or not self._is_reading or not self._is_ipv4:
                        continue
                    if self._reactor._monotonic() > plain_since + PLAIN_SECONDS:
                        self._is_behind = True
                        break
                if handler.turn != self._reactor._number:
                    handler.turn = self._reactor._number
                    handler.is_on = handler.begin()
                if handler.is_on and handler.answer(&frame, self, output):
                    at += length
                    if handler.has_stirred:
                        handler.has_stirred = False
                        self._reactor._has_stirred = True
                    if output.end - output.begin > WRITTEN:
                        written += output.end - output.begin
                        self._flush()
                        if output.end - output.begin > self._high:
                            self._hold_back()
                    continue
            if plain < 0:
                plain = at
            at += length
        if at == 0 and 4 <= size < 8 and get_u32(data) + <int64_t> 4 > MAX_FRAME_BYTES:  # the length is too large
            plain, at = 0, size
        if plain >= 0 and not self._is_closing:
            self._deliver(data + plain, at - plain)
        return at

    cdef int _deliver(self, const char* data, Py_ssize_t size) except -1:
        self._reactor._number += 1  # Python may change tables: handlers must begin again
        self._reactor._has_stirred = True
        self._protocol.data_received(PyBytes_FromStringAndSize(data, size))
        return 0

    cdef int _keep(self, const char* data, Py_ssize_t size) except -1:
        cdef char* kept
        if size > self._kept_room:
            kept = <char*> realloc(self._kept, size)
            if kept == NULL:
                raise MemoryError
            self._kept = kept
            self._kept_room = size
        memcpy(self._kept, data, size)
        self._kept_size = size
        self._reactor._kept += size
        return 0

    cdef int _keep_nothing(self) except -1:
        """Forget the kept bytes. Free a large buffer, as thousands of connections may have one."""
        self._reactor._kept -= self._kept_size
        self._kept_size = 0
        if self._kept_room > KEPT_AT_LEAST:
            free(self._kept)
            self._kept = NULL
            self._kept_room = 0
        return 0

    cdef int _fail(self, int number) except -1:
        """Handle an error of the socket. Requests received before are still answered; their replies are dropped."""
        if self._is_in_burst:
            self._broken = number
            self._output.begin = self._output.end = 0
            return 0
        self._is_closing = True
        self._output.begin = self._output.end = 0
        self._end(OSError(number, os.strerror(number)))
        return 0

    cdef int _end(self, error) except -1:
        if self._is_closed:
            return 0
        self._is_closed = True
        if self._kept_size:
            kept = PyBytes_FromStringAndSize(self._kept, self._kept_size)
            self._keep_nothing()
            self._protocol.data_received(kept)  # the protocol logs the incomplete frame; its replies are dropped
        self._reactor._unread -= self._unread
        self._unread = 0
        self._reactor._roomy -= self._is_roomy
        self._is_roomy = False
        self._reactor._remove(self)
        self._reactor._has_stirred = True
        self._reactor._loop.call_soon(self._protocol.connection_lost, error)
        self._protocol = None  # breaks the cycle of references between protocol and transport
        return 0


cdef class Reactor:
    """Serves the connections of a server. `fast_path` are the handlers; `busy_poll_us`: polling before sleeping."""

    cdef object _loop, _monotonic
    cdef int _epoll
    cdef list _by_fd
    cdef uint32_t _serial
    cdef char* _buffer
    cdef double _turn  # start of the turn (monotonic seconds)
    cdef uint64_t _number  # counts turns and calls of protocols: handlers begin again when it changes
    cdef list _handlers
    cdef list _behind
    cdef bint _is_called
    cdef epoll_event _left[EVENTS]  # events not served yet
    cdef int _left_count
    cdef bint _has_stirred  # True if this turn may have given the event loop work
    cdef int64_t _busy_ns, _deadline  # polling time; end of this turn
    cdef int _roomy  # connections that keep a large reply buffer
    cdef Py_ssize_t _unread  # unsent bytes of all connections
    cdef Py_ssize_t _kept, _max_kept  # bytes of frames and bursts, of all connections
    cdef object _selector

    def __cinit__(self):
        self._epoll = -1
        # Room for kept bytes and the bytes of a read; header readers may load 16 bytes in one step.
        self._buffer = <char*> malloc(2 * (RECEIVED + KEPT) + 64)
        if self._buffer == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._buffer)

    def __init__(self, loop, *, monotonic, fast_path=(), int busy_poll_us=0, Py_ssize_t kept_bytes=1 << 24, selector=None):
        self._loop = loop
        self._monotonic = monotonic
        self._handlers = list(fast_path)
        self._busy_ns = busy_poll_us * 1000
        self._max_kept = kept_bytes
        self._by_fd = []
        self._behind = []
        self._epoll = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll < 0:
            raise OSError(c_errno, os.strerror(c_errno))
        loop.add_reader(self._epoll, self.poll)
        self._selector = selector
        if selector is not None:
            selector.reactors[self._epoll] = self

    def add(self, sock, protocol):
        """Serve a connection. The socket must be non-blocking."""
        cdef epoll_event event
        cdef Transport transport
        self._serial += 1
        transport = Transport(self, sock, protocol, self._serial)
        while len(self._by_fd) <= transport._fd:
            self._by_fd.append(None)
        self._by_fd[transport._fd] = transport
        event.events = transport._events = EPOLLIN
        event.data.u64 = <uint64_t> transport._serial << 32 | <uint32_t> transport._fd
        if epoll_ctl(self._epoll, EPOLL_CTL_ADD, transport._fd, &event) < 0:
            self._by_fd[transport._fd] = None
            raise OSError(c_errno, os.strerror(c_errno))
        protocol.connection_made(transport)
        return transport

    def close(self):
        """Abort the open connections, then close the epoll set."""
        for transport in list(self._by_fd):
            if transport is not None:
                transport.abort()
        if self._epoll >= 0:
            self._loop.remove_reader(self._epoll)
            if self._selector is not None:
                del self._selector.reactors[self._epoll]
            os.close(self._epoll)
            self._epoll = -1

    def _poll_again(self):
        self._is_called = False
        self.poll()

    def poll(self):
        """Serve ready connections for one turn."""
        self._take_turn(True, TURN_NS)

    cdef int _take_turn(self, bint is_patient, int64_t turn_ns) except -1:
        """Serve ready connections for `turn_ns`.

        `is_patient`: poll again before the turn ends, because sleeping and waking is slow.
        """
        cdef epoll_event events[EVENTS]
        cdef int64_t started = now_ns()
        cdef int64_t deadline = started + turn_ns
        cdef int64_t busy_until
        cdef int count, number
        cdef Transport transport
        cdef FastHandler handler
        count = self._left_count
        memcpy(events, self._left, count * sizeof(epoll_event))
        self._left_count = 0
        self._turn = self._monotonic()
        self._deadline = deadline
        self._number += 1
        if self._behind:
            self._serve_behind()
        busy_until = started + self._busy_ns
        while self._epoll >= 0:
            if count == 0:
                count = epoll_wait(self._epoll, events, EVENTS, 0)
            if count <= 0:
                count = 0
                if self._busy_ns and now_ns() < busy_until and not self._behind:
                    continue
                break
            for number in range(count):
                transport = self._by_fd[<uint32_t> events[number].data.u64]
                if transport is not None and transport._serial == events[number].data.u64 >> 32:
                    self._serve(transport, events[number].events)
                started = now_ns()
                if started > deadline:
                    self._left_count = count - number - 1
                    memcpy(self._left, events + number + 1, self._left_count * sizeof(epoll_event))
                    break
            if started > deadline or not (is_patient or self._busy_ns or count == EVENTS):
                break
            busy_until = min(started + self._busy_ns, deadline)
            count = 0
        for handler in self._handlers:
            handler.end_turn()
            if handler.has_stirred:
                handler.has_stirred = False
                self._has_stirred = True
        return 0

    cdef int _serve_behind(self) except -1:
        """Serve the connections that waited for this turn, for half of the turn. The others wait for the next turn."""
        cdef Py_ssize_t number = 0
        cdef Transport transport
        behind, self._behind = self._behind, []
        for transport in behind:
            number += 1
            transport._is_queued = False
            if not transport._is_closed:
                self._serve(transport, 0)
            if now_ns() > self._deadline - TURN_NS // 2:
                break
        if number < len(behind):
            self._behind = behind[number:] + self._behind
            self._call_again()
        return 0

    cdef bint _is_full(self) noexcept:
        return self._kept > self._max_kept

    cdef int _serve(self, Transport transport, uint32_t events) except -1:
        try:
            if events & EPOLLOUT:
                transport._push()
            if events & ~EPOLLOUT and not transport._is_closed and (transport._is_reading or events & EPOLLERR):
                if not transport._is_behind:
                    transport._readable()
            elif events & EPOLLHUP and not transport._is_closed:
                transport.abort()
            elif events == 0:
                transport._go_on()
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "serving a connection failed", "exception": error, "protocol": transport._protocol}
            )
            transport.abort()
        return 0

    cdef FastHandler _handler_for(self, const Frame* frame):
        cdef FastHandler handler
        cdef int code
        code = code_of(frame)
        for handler in self._handlers:
            if handler.code == code:
                return handler
        return None

    cdef int _come_back(self, Transport transport) except -1:
        """Answer a connection's kept frames in the next turn, before more bytes are read from the connection."""
        transport._is_behind = True
        if not transport._is_queued:
            transport._is_queued = True
            self._behind.append(transport)
        self._call_again()
        return 0

    cdef int _call_again(self) except -1:
        self._has_stirred = True
        if not self._is_called:  # otherwise each call would schedule another one
            self._is_called = True
            self._loop.call_soon(self._poll_again)
        return 0

    cdef int _remove(self, Transport transport) except -1:
        cdef epoll_event event
        epoll_ctl(self._epoll, EPOLL_CTL_DEL, transport._fd, &event)
        self._by_fd[transport._fd] = None
        transport._socket.close()
        return 0


class ServingSelector(selectors.EpollSelector):
    """The selector of an event loop. Serves the connections of reactors while the event loop waits.

    The event loop is not woken while only reactors have work: a turn of the loop costs as much as a few requests.
    """

    def __init__(self):
        super().__init__()
        self.reactors = {}  # descriptor of an epoll set -> its reactor

    def select(self, timeout=None):
        if self.reactors and not _serve(self.fileno(), self.reactors, -1.0 if timeout is None else max(timeout, 0.0)):
            return []
        return super().select(0 if self.reactors else timeout)


cdef bint _serve(int epoll, dict reactors, double seconds) except -1:
    """Serve reactors for up to `seconds`; negative: no limit. Return True if other descriptors are ready.

    Return False after `seconds`, or if the event loop has work.
    """
    cdef epoll_event events[EVENTS]
    cdef int64_t deadline = -1 if seconds < 0 else now_ns() + <int64_t> (seconds * 1e9)
    cdef int64_t left, turn_ns
    cdef int count, number, milliseconds
    cdef bint has_others, has_stirred
    cdef Reactor reactor
    while True:
        milliseconds = -1
        turn_ns = TURN_NS
        if deadline >= 0:
            left = deadline - now_ns()
            turn_ns = min(max(left, LEAST_TURN_NS), TURN_NS)
            # Rounded up, as asyncio's selector does: the loop must not wake before a timer is due.
            milliseconds = 0 if left <= 0 else <int> min((left + 999_999) // 1_000_000, 1_000_000)
        count = epoll_wait(epoll, events, EVENTS, 0)
        if count == 0 and milliseconds != 0:  # the GIL is released only before sleeping, as that is slow
            with nogil:
                count = epoll_wait(epoll, events, EVENTS, milliseconds)
        if count < 0:
            if c_errno != EINTR:
                raise OSError(c_errno, os.strerror(c_errno))
            PyErr_CheckSignals()
            return True
        if count == 0:
            return False
        has_others = has_stirred = False
        for number in range(count):
            reactor = reactors.get(events[number].data.fd)
            if reactor is None:
                has_others = True
                continue
            reactor._has_stirred = False
            reactor._take_turn(False, turn_ns)
            has_stirred = has_stirred or reactor._has_stirred
        if has_others:
            return True
        if has_stirred or (deadline >= 0 and now_ns() >= deadline):
            return False
