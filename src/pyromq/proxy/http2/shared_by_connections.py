"""What all HTTP/2 connections of a port share: the handler of calls, and the memory of large messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyromq.clock import Clock
from pyromq.proxy.http2.frames import FRAME_SIZE, MAX_MESSAGE_BYTES
from pyromq.proxy.http2.grpc_stream import GrpcStream
from pyromq.quota import Quota
from pyromq.remoting.rejection_log import RejectionLog

if TYPE_CHECKING:
    from pyromq.proxy.http2.http2_connection import Http2Connection


class CallHandler(Protocol):
    """What a connection calls when a client has opened a call."""

    def opened(self, stream: GrpcStream) -> None:
        """Set the callbacks of the stream, or finish it."""


@dataclass(slots=True)
class SharedByConnections:
    """What all connections of a port share."""

    handler: CallHandler
    clock: Clock
    refusals: RejectionLog
    # Bytes of incomplete messages. Large messages reserve all their bytes before the peer may send them.
    memory: Quota[Http2Connection] = field(
        default_factory=lambda: Quota("maxMessageMemory", 64 << 20, least=MAX_MESSAGE_BYTES + FRAME_SIZE, is_hard=True)
    )
    connections: set[Http2Connection] = field(default_factory=set)
    waiting: deque[GrpcStream] = field(default_factory=deque)  # large messages that wait for memory
