"""The limits of one connection and of all connections of a server, and their use. No sockets here.

`share` divides a common limit: a connection gets a part of the free amount, so further connections always find room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pyromq.errors import ResponseCode
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Reply
from pyromq.remoting.frame import MAX_FRAME_BYTES
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.settings import check_ranges, setting

ALWAYS_IN_FLIGHT = 100  # requests in flight that every connection may have, even if the common limit is reached

H = TypeVar("H")

SHARES = 10  # a connection may use 1/10 of the free amount: ten greedy ones leave a third, a hundred a tenth
LARGE_REQUESTS = frozenset(  # with messages, all topics of a broker, or all attempts of a job
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
    """Limits that ten thousand ordinary clients do not reach, even from one IP address."""

    # Open at once, 4 kB each; fewer if the process may open fewer files.
    connections: int = setting(20_000, "maxConnections", range=_COUNT)
    # Of one IP address; the same, because many clients may be behind one router.
    connections_per_address: int = setting(20_000, "maxConnectionsPerAddress", range=_COUNT)
    # Of one request: properties have at most 32 KiB, six times as much when escaped.
    header_bytes: int = setting(256 << 10, "maxHeaderBytes", range=_FRAME)
    # Of one request without messages: a heartbeat with some thousand subscriptions.
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
        """Return the limit for the size of a request with this code."""
        return self.message_request_bytes if code in LARGE_REQUESTS else self.request_bytes


DEFAULT_CONNECTION_LIMITS = ConnectionLimits()


def share(limit: int, taken: int) -> int:
    """Return one connection's part of a common limit of which `taken` is in use."""
    return max(0, limit - taken) // SHARES


class Writer(Protocol):
    """The transport of one connection."""

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes."""


class BytesPool(Generic[H]):
    """A limit of bytes for all holders together, with each holder's amount."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._held: dict[H, int] = {}  # least recently changed first

    def hold(self, holder: H, amount: int) -> None:
        """Set the amount of a holder."""
        self.taken += amount - self._held.pop(holder, 0)
        if amount:
            self._held[holder] = amount

    def idlest(self) -> H | None:
        """Return the holder whose amount changed least recently; None while the limit is not exceeded."""
        return next(iter(self._held)) if self.taken > self.limit else None


class Budget:
    """The limits of one server's connections and their use. `refusals` counts and logs the refused requests."""

    def __init__(self, limits: ConnectionLimits, refusals: RejectionLog) -> None:
        self.limits = limits
        self.refusals = refusals
        self.in_flight = 0  # requests not answered yet, all connections together
        self.is_over = False  # the server has stopped: requests must not be retried on a closed store

    def max_in_flight(self) -> int:
        """Return the current limit of requests in flight for one connection."""
        free = share(self.limits.all_requests_in_flight, self.in_flight)
        return min(self.limits.requests_in_flight, max(ALWAYS_IN_FLIGHT, free))

    def too_large(self, code: int, size: int, address: str) -> Reply | None:
        """Return the refusal of a request of `size` bytes; None if it is within the limit."""
        limit = self.limits.frame_bytes(code)
        if size <= limit:
            return None
        carries_messages = code in LARGE_REQUESTS
        setting = "maxMessageSize" if carries_messages else "maxRequestBytes"
        text = f"request {code} has {size} bytes; the limit is {limit} ({setting}): send less at once, or raise it"
        self.refusals.note(setting, address, "refused of %s: %s", address, text)
        code = ResponseCode.MESSAGE_ILLEGAL if carries_messages else ResponseCode.SYSTEM_ERROR
        return Reply(code=code, remark=text)

    def too_many_in_flight(self, count: int, address: str) -> Reply | None:
        """Return the refusal of a request of a connection with `count` in flight; None if it is within the limit."""
        limit = self.max_in_flight()
        if count < limit:
            return None
        setting = "maxRequestsInFlight" if limit == self.limits.requests_in_flight else "maxAllRequestsInFlight"
        text = f"{count} requests of this connection wait for their answers; the limit is {limit} ({setting})"
        self.refusals.note(setting, address, "refused of %s: %s", address, text)
        return Reply(code=ResponseCode.SYSTEM_BUSY, remark=f"{text}: ask again later, or by another connection")
