"""What all HTTP/2 connections of a port share: the handler of calls, and the memory that peers may use.

Open calls, messages in work and answers that peers do not take count as kept bytes, which `fair_share` divides among
the connections. Large messages reserve all their bytes before the peer may send them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyromq.clock import Clock
from pyromq.errors import LimitReached
from pyromq.proxy.http2.grpc_stream import MAX_MESSAGE_BYTES, PREFIX, GrpcStream
from pyromq.quota import Quota, fair_share
from pyromq.remoting.rejection_log import RejectionLog

if TYPE_CHECKING:
    from pyromq.proxy.http2.http2_connection import Http2Connection

SLICE_BYTES = 32 << 10  # bytes read at once, and handled in a turn of the event loop: 25 calls take 3 ms
MIN_SLICE_BYTES = 2 << 10  # bytes of one connection that are handled at once if several have much to do
KEPT_BYTES = 24 << 20  # limit of kept bytes, without the least share of each connection
LEAST_KEPT_BYTES = 32 << 10
LARGE_BYTES = 20 << 20  # limit of large messages, which the proxy copies up to four times on their way
MAX_WAITING = 128  # limit of large messages that wait for memory: each has sent up to `STREAM_WINDOW` already


class CallHandler(Protocol):
    """What a connection calls when a client has opened a call."""

    def opened(self, stream: GrpcStream) -> None:
        """Set the callbacks of the stream, or finish it."""


@dataclass(slots=True)
class SharedByConnections:
    """The handler of calls, and the memory and the turns of the event loop that connections share."""

    handler: CallHandler
    clock: Clock
    refusals: RejectionLog
    connections: set[Http2Connection] = field(default_factory=set)
    # Connections with more to do than their slices, in the order of their next ones.
    late: dict[Http2Connection, None] = field(default_factory=dict)
    is_going_on: bool = False  # whether late connections go on in the next turn
    kept: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    large: Quota[Http2Connection] = field(
        default_factory=lambda: Quota("LARGE_BYTES", LARGE_BYTES, least=MAX_MESSAGE_BYTES + PREFIX.size, is_hard=True)
    )
    waiting: deque[GrpcStream] = field(default_factory=deque)  # large messages that wait for memory

    @property
    def slice_bytes(self) -> int:
        """Return how many received bytes the next connection may handle at once."""
        return MIN_SLICE_BYTES if self.late else SLICE_BYTES

    def add_late(self, connection: Http2Connection) -> None:
        """Let a connection handle its rest in a later turn of the event loop, after connections that already wait."""
        self.late[connection] = None
        if not self.is_going_on:
            self.is_going_on = True
            asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Let waiting connections handle slices, one after another, as many as fit into a turn of the event loop."""
        budget = SLICE_BYTES
        for connection in list(self.late):
            if budget <= 0:
                break
            del self.late[connection]
            size = min(budget, self.slice_bytes)
            budget -= size - connection.go_on(size)
        self.is_going_on = bool(self.late)
        if self.late:
            asyncio.get_running_loop().call_soon(self.go_on)

    def share_of(self, connection: Http2Connection) -> int:
        """Return how many bytes a connection may keep."""
        return fair_share(KEPT_BYTES, self.kept - connection.kept, least=LEAST_KEPT_BYTES)

    def reserve(self, stream: GrpcStream) -> None:
        """Let the peer send the rest of a large message, when there is memory for it.

        Raises `LimitReached` if too many messages wait.
        """
        try:
            text = "clients send too many large messages at once: send less at once"
            self.large.acquire(stream.connection, stream.need, text=text)
        except LimitReached:
            if len(self.waiting) >= MAX_WAITING:
                raise
            self.waiting.append(stream)
            return
        stream.reserved = stream.need
        stream.open_window(stream.need - len(stream.buffer))

    def release(self, stream: GrpcStream) -> None:
        """Release the memory of a large message that was sent on or dropped; waiting messages get it in their order."""
        if not stream.reserved:
            if stream in self.waiting:
                self.waiting.remove(stream)
            return
        self.large.release(stream.connection, stream.reserved)
        stream.reserved = 0
        for _ in range(len(self.waiting)):
            self.reserve(self.waiting.popleft())
