"""How much one connection, and all connections of a server together, may make it keep and do.

What all share is shared out by `share`: a connection gets a part of what is free, so that however many take part, the
next one finds room.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyromq.errors import UsageError
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.frame import MAX_FRAME_BYTES

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
