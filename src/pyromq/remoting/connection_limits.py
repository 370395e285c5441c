"""How much one connection, and all connections of a server together, may make it keep and do.

What all share is shared out by `share`: a connection gets a part of what is free, so that however many take part, the
next one finds room.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, Protocol, TypeVar

from pyromq.errors import ResponseCode, UsageError
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Reply
from pyromq.remoting.frame import MAX_FRAME_BYTES
from pyromq.remoting.rejection_log import RejectionLog

ALWAYS_IN_FLIGHT = 100  # requests a connection may have in flight, however many others have

H = TypeVar("H")

SHARES = 10  # of what is free, one for a connection: ten greedy ones leave a third of all, a hundred a tenth
LARGE_REQUESTS = frozenset(  # carry messages, all topics of a broker, or all attempts of a job's tasks
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


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Numbers that ten thousand ordinary clients do not reach, also when all of them come from one address."""

    connections: int = 20_000  # at a time; four kilobytes each. Fewer where the process may have fewer files open
    connections_per_address: int = 20_000  # of one IP address; as all, since many clients may be behind one router
    header_bytes: int = 256 << 10  # of one request: properties have at most 32 KiB, six times as much when escaped
    request_bytes: int = 1 << 20  # of one request without messages: a heartbeat of some thousand subscriptions
    message_request_bytes: int = MAX_FRAME_BYTES  # of one request with messages; a broker derives it from theirs
    received_bytes: int = 64 << 20  # of requests that are not complete or not answered, all connections together
    unread_bytes: int = 4 << 20  # of answers that one connection leaves unread before nothing is read from it
    all_unread_bytes: int = 64 << 20  # ... all connections together
    requests_in_flight: int = 10_000  # of one connection, taken and not answered, such as pulls that wait
    all_requests_in_flight: int = 100_000  # ... all connections together; about a kilobyte each
    frame_timeout_ms: int = 30_000  # for the next byte of a request that has begun

    def __post_init__(self) -> None:
        for field in fields(self):
            least, most = _RANGES.get(field.name, (1, 1 << 40))
            value = getattr(self, field.name)
            if not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"{field.name} is {value!r}; it must be {least} to {most}")

    def frame_bytes(self, code: int) -> int:
        """Return how large a request with this code may be."""
        return self.message_request_bytes if code in LARGE_REQUESTS else self.request_bytes


_RANGES = {
    "header_bytes": (1 << 10, MAX_FRAME_BYTES),
    "request_bytes": (1 << 10, MAX_FRAME_BYTES),
    "message_request_bytes": (1 << 10, MAX_FRAME_BYTES),
    "frame_timeout_ms": (100, 3_600_000),
}

DEFAULT_CONNECTION_LIMITS = ConnectionLimits()

# The settings' names in properties files, all of them ours -> fields.
CONNECTION_LIMIT_NAMES = {
    "maxConnections": "connections",
    "maxConnectionsPerAddress": "connections_per_address",
    "maxHeaderBytes": "header_bytes",
    "maxRequestBytes": "request_bytes",
    "maxReceivedBytes": "received_bytes",
    "maxUnreadBytes": "unread_bytes",
    "maxAllUnreadBytes": "all_unread_bytes",
    "maxRequestsInFlight": "requests_in_flight",
    "maxAllRequestsInFlight": "all_requests_in_flight",
    "frameTimeoutMillis": "frame_timeout_ms",
}


def share(limit: int, taken: int) -> int:
    """Return how much one connection may have of what all have a limit for and have taken so much of."""
    return max(0, limit - taken) // SHARES


class Writer(Protocol):
    """What writes to one connection."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the peer has not taken yet."""


class BytesPool(Generic[H]):
    """So many bytes for all holders. Who holds what, in the order in which that changed last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._held: dict[H, int] = {}

    def hold(self, holder: H, amount: int) -> None:
        """Note that a holder has so much from now on."""
        self.taken += amount - self._held.pop(holder, 0)
        if amount:
            self._held[holder] = amount

    def idlest(self) -> H | None:
        """Return who has to give way, whose amount has not changed for longest; None while there is room."""
        return next(iter(self._held)) if self.taken > self.limit else None


class Budget:
    """The limits of one server's connections, and what these use. `refusals` are told who met which limit."""

    def __init__(self, limits: ConnectionLimits, refusals: RejectionLog) -> None:
        self.limits = limits
        self.refusals = refusals
        self.in_flight = 0  # requests taken and not answered
        self.is_over = False  # whether the server has stopped: what its answers are about may be closed

    def max_in_flight(self) -> int:
        """Return how many requests one connection may have in flight now."""
        free = share(self.limits.all_requests_in_flight, self.in_flight)
        return min(self.limits.requests_in_flight, max(ALWAYS_IN_FLIGHT, free))

    def too_large(self, code: int, size: int, address: str) -> Reply | None:
        """Return the refusal of a request of so many bytes; None: it is taken."""
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
        """Return the refusal of one more request, where a connection has so many in flight; None: it is taken."""
        limit = self.max_in_flight()
        if count < limit:
            return None
        setting = "maxRequestsInFlight" if limit == self.limits.requests_in_flight else "maxAllRequestsInFlight"
        text = f"{count} requests of this connection wait for their answers; the limit is {limit} ({setting})"
        self.refusals.note(setting, address, "refused of %s: %s", address, text)
        return Reply(code=ResponseCode.SYSTEM_BUSY, remark=f"{text}: ask again later, or by another connection")
