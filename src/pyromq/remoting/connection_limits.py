"""The limits of one connection and of all connections of a server, and how much of them is used.

No sockets here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyromq.errors import ResponseCode
from pyromq.quota import Quota
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import MAX_FRAME_BYTES, Reply
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.server_settings import check_ranges, setting

ALWAYS_IN_FLIGHT = 100  # requests in flight that every connection may have, even if the common limit is reached

LARGE_REQUESTS = frozenset(  # requests with messages, with all topics of a broker, or with all attempts of a job
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.SEND_HALF_RUN,
        RequestCode.COMMIT_BATCH,
        RequestCode.ROLL_BACK_BATCH,
        RequestCode.REGISTER_BROKER,
    }
)
_COUNT = (1, 1 << 40)
_FRAME = (1 << 10, MAX_FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits for the connections of a server.

    Ten thousand ordinary clients stay below them, even from one IP address.
    """

    # Open at once, 4 kB each; fewer if the process may open fewer files.
    connections: int = setting(20_000, "maxConnections", range=_COUNT)
    # Of one IP address; the same, because many clients may be behind one router.
    connections_per_address: int = setting(20_000, "maxConnectionsPerAddress", range=_COUNT)
    # Of one request: properties have at most 32 KiB, six times as much when escaped.
    header_bytes: int = setting(256 << 10, "maxHeaderBytes", range=_FRAME)
    # Of one request without messages: a heartbeat with a few thousand subscriptions.
    request_bytes: int = setting(1 << 20, "maxRequestBytes", range=_FRAME)
    # Of one request with messages; brokers derive it from maxMessageSize.
    message_request_bytes: int = setting(MAX_FRAME_BYTES, range=_FRAME)
    # Of incomplete or pending requests, all connections together.
    received_bytes: int = setting(64 << 20, "maxReceivedBytes", range=_COUNT)
    # Unsent bytes of one connection before reading from it is paused.
    unread_bytes: int = setting(4 << 20, "maxUnreadBytes", range=_COUNT)
    # Unsent bytes of all connections together; beyond it the idlest is closed.
    all_unread_bytes: int = setting(64 << 20, "maxAllUnreadBytes", range=_COUNT)
    # Of one connection, for example waiting pulls.
    requests_in_flight: int = setting(10_000, "maxRequestsInFlight", range=_COUNT)
    # Of all connections together; about a kilobyte each.
    all_requests_in_flight: int = setting(100_000, "maxAllRequestsInFlight", range=_COUNT)
    # For the next byte of an incomplete frame.
    frame_timeout_ms: int = setting(30_000, "frameTimeoutMillis", range=(100, 3_600_000))

    def __post_init__(self) -> None:
        check_ranges(self)

    def frame_bytes(self, code: int) -> int:
        """Return the limit in bytes of a request with this code."""
        return self.message_request_bytes if code in LARGE_REQUESTS else self.request_bytes


DEFAULT_CONNECTION_LIMITS = ConnectionLimits()


class Writer(Protocol):
    """The transport of one connection."""

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""


class Budget:
    """The connection limits of one server, and how much of them is used.

    `refusals` counts and logs refused requests.
    """

    def __init__(self, limits: ConnectionLimits, refusals: RejectionLog) -> None:
        self.limits = limits
        self.refusals = refusals
        # Number of requests without a reply, by connection.
        self.in_flight: Quota[object] = Quota(
            "maxAllRequestsInFlight",
            limits.all_requests_in_flight,
            least=ALWAYS_IN_FLIGHT,
            max_each=limits.requests_in_flight,
        )
        self.is_over = False  # the server has stopped: requests must not be retried on a closed store

    def too_large(self, code: int, size: int, address: str) -> Reply | None:
        """Return the reply that refuses a request of `size` bytes; None if the size is within the limit."""
        limit = self.limits.frame_bytes(code)
        if size <= limit:
            return None
        carries_messages = code in LARGE_REQUESTS
        setting = "maxMessageSize" if carries_messages else "maxRequestBytes"
        text = f"request {code} has {size} bytes; the limit is {limit} ({setting}): send less at once, or raise it"
        self.refusals.note(setting, address, "refused of %s: %s", address, text)
        code = ResponseCode.MESSAGE_ILLEGAL if carries_messages else ResponseCode.SYSTEM_ERROR
        return Reply(code=code, remark=text)

    def too_many_in_flight(self, peer: object, address: str) -> Reply | None:
        """Return the reply that refuses one more request of a connection; None if the request is within the limit."""
        limit, count = self.in_flight.share_of(peer), self.in_flight.of(peer)
        if count < limit:
            return None
        setting = "maxRequestsInFlight" if limit == self.limits.requests_in_flight else self.in_flight.setting
        text = f"{count} requests of this connection wait for their replies; the limit is {limit} ({setting})"
        self.refusals.note(setting, address, "refused of %s: %s", address, text)
        return Reply(code=ResponseCode.SYSTEM_BUSY, remark=f"{text}: send it later, or over another connection")
