"""What one connection of a server uses of the server's budget, and whether it is read from."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pyromq.logs import logger_of
from pyromq.net.fair_scheduler import FairScheduler
from pyromq.remoting.budget import Budget, BytesPool
from pyromq.remoting.connection_limits import share
from pyromq.remoting.remoting_session import RemotingSession

if TYPE_CHECKING:
    from pyromq.net.connection import Connection

logger = logger_of(__name__)

COUNTED_BYTES = 4096  # of a request that is not complete; less is not counted for every connection


class Shared:
    """What the connections of one server have in common."""

    def __init__(self, budget: Budget, scheduler: FairScheduler) -> None:
        self.budget = budget
        self.scheduler = scheduler
        self.received: BytesPool[ConnectionQuota] = BytesPool(budget.limits.received_bytes)
        self.unread: BytesPool[ConnectionQuota] = BytesPool(budget.limits.all_unread_bytes)
        self.run_soon = partial(run_soon, asyncio.get_running_loop())


def run_soon(loop: asyncio.AbstractEventLoop, *call: object) -> None:
    """Call a function with its arguments in the loop; from any thread."""
    try:
        loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]  # function and its arguments
    except RuntimeError:  # an answer completed by another thread after the loop has ended has nobody to go to
        logger.debug("an answer came after the end")


class ConnectionQuota:
    """Counts what one connection makes the server keep. Who leaves its answers unread, or is behind, is not read from.

    When all connections together keep too much, the one that has sent or read nothing for longest is cut.
    """

    __slots__ = (
        "_connection",
        "_is_scheduled",
        "_is_stopped",
        "_received",
        "_session",
        "_shared",
        "_transport",
        "_unread",
        "is_clogged",
        "is_counted",
    )

    def __init__(self, connection: Connection, transport: asyncio.Transport, shared: Shared) -> None:
        self.is_counted = False  # whether anything of this connection is, or it is not read from for now
        self.is_clogged = False  # whether the transport has told that not all was sent, and not yet that it was
        self._connection = connection
        self._session: RemotingSession = connection.session
        self._transport = transport
        self._shared = shared
        self._unread = self._received = 0
        self._is_stopped = False
        self._is_scheduled = False

    @property
    def address(self) -> str:
        return self._session.address

    def weigh(self) -> None:
        """Count again, and read from the connection or do not, as that demands."""
        session, shared = self._session, self._shared
        if session.closed:
            return
        unread = self._transport.get_write_buffer_size() + session.finished_bytes
        if unread != self._unread:
            shared.unread.hold(self, unread)
            self._unread = unread
        received = session.splitter.unfinished + session.behind_bytes
        if received != self._received:
            shared.received.hold(self, received if received > COUNTED_BYTES else 0)
            self._received = received
        self.is_counted = bool(unread or received)
        self._make_room()
        if not session.closed and not self._transport.is_closing():
            self._decide()
            # Who is only behind with answers that are views keeps nothing, and is to be read from again all the same.
            self.is_counted = self.is_counted or self._is_stopped

    def go_on(self, until: float) -> None:
        """The connection's turn has come."""
        self._is_scheduled = False
        self._connection.go_on(until)

    def end(self) -> None:
        """The connection is gone, and uses nothing any more."""
        self._shared.unread.hold(self, 0)
        self._shared.received.hold(self, 0)

    def give_way(self, setting: str, limit: int) -> None:
        """End the connection, to make room for others."""
        text = "closing connection of %s: all connections together keep %d bytes (%s), and it has been idle for longest"
        self._shared.budget.refusals.note(setting, self.address, text, self.address, limit, setting)
        self.end()
        self._connection.cut()

    def _make_room(self) -> None:
        shared = self._shared
        for stock, setting in ((shared.received, "maxReceivedBytes"), (shared.unread, "maxAllUnreadBytes")):
            while (idlest := stock.idlest()) is not None:
                idlest.give_way(setting, stock.limit)

    def _decide(self) -> None:
        session, shared, limits = self._session, self._shared, self._shared.budget.limits
        is_unread = self._unread > min(limits.unread_bytes, share(limits.all_unread_bytes, shared.unread.taken))
        session.is_unread = is_unread
        if is_unread or session.is_behind:
            if not self._is_stopped:
                self._is_stopped = True
                self._transport.pause_reading()
            if is_unread:
                if not self.is_clogged:  # within a burst: nobody knows yet how much the peer takes
                    asyncio.get_running_loop().call_soon(self.weigh)
            elif not self._is_scheduled:
                self._is_scheduled = True
                shared.scheduler.add(self)
        elif self._is_stopped and not self._connection.is_ending:
            self._is_stopped = False
            self._transport.resume_reading()
