"""What the connections of one server use of what they share, and what is said to who wants more. No sockets here."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from pyromq.errors import ResponseCode
from pyromq.remoting.command import Reply
from pyromq.remoting.connection_limits import LARGE_REQUESTS, ConnectionLimits, share
from pyromq.remoting.rejection_log import RejectionLog

ALWAYS_IN_FLIGHT = 100  # requests a connection may have in flight, however many others have

H = TypeVar("H")


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

    def most_in_flight(self) -> int:
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
        limit = self.most_in_flight()
        if count < limit:
            return None
        setting = "maxRequestsInFlight" if limit == self.limits.requests_in_flight else "maxAllRequestsInFlight"
        text = f"{count} requests of this connection wait for their answers; the limit is {limit} ({setting})"
        self.refusals.note(setting, address, "refused of %s: %s", address, text)
        return Reply(code=ResponseCode.SYSTEM_BUSY, remark=f"{text}: ask again later, or by another connection")
