"""Answers administrators' requests to one replica of a set: its state, a planned failover, an accepted loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pyromq.broker.modules import BrokerModule
from pyromq.broker.replication.operating.set_status import figures_of, status_of
from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError, MQError
from pyromq.net.tasks import Tasks
from pyromq.remoting.bodies import encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import AcceptLoss, HandOver, ReplicaSetState

if TYPE_CHECKING:
    from pyromq.broker.replication.replica_server import ReplicaServer


def replica_set(server: ReplicaServer, now: Callable[[], float]) -> Callable[[SharedState], BrokerModule]:
    """Return a function that makes the broker's module for requests about its replica set."""

    def make(state: SharedState) -> BrokerModule:
        processor = ReplicaSetProcessor(server, now)
        state.more_figures = lambda: figures_of(server, now())
        return BrokerModule(answerers=[processor], stop=processor.stop)

    return make


class ReplicaSetProcessor:
    """Answers requests about the replica that this broker belongs to."""

    def __init__(self, server: ReplicaServer, now: Callable[[], float]) -> None:
        self._server = server
        self._now = now
        self._tasks = Tasks()
        self.stop = self._tasks.stop

    @answers(ReplicaSetState)
    def state(self, header: ReplicaSetState, call: Call) -> Reply:
        return Reply(body=encode_body(status_of(self._server, self._now())))

    @answers(HandOver)
    def hand_over(self, header: HandOver, call: Call) -> Future[Reply]:
        """Start a planned failover. Reply when the set's record names the other master, or when the failover fails."""
        reply: Future[Reply] = Future()
        self._tasks.start(self._hand_over(header.number, reply), name="hand over")
        return reply

    async def _hand_over(self, number: int, reply: Future[Reply]) -> None:
        try:
            await self._server.hand_over(number)
        except MQError as error:
            reply.set_exception(BrokerError(str(error)))
        except asyncio.CancelledError:
            reply.set_exception(BrokerError("the broker stops"))
            raise
        else:
            reply.set_result(Reply())

    @answers(AcceptLoss)
    def accept_loss(self, header: AcceptLoss, call: Call) -> Reply:
        """Start the election of this replica with loss. Raises `BrokerError` if the set has or can elect a master."""
        if (reason := self._why_no_loss()) is not None:
            raise BrokerError(reason)
        self._server.accept_loss(header.reason)
        return Reply()

    def _why_no_loss(self) -> str | None:
        """Return why no election with loss is allowed now; None if it is.

        The request is also allowed at a master whose registry was restored: the election writes the set's record again.
        """
        server, replica = self._server, self._server.replica
        if replica.is_master:
            return None if replica.view.is_restored else f"replica {server.number} is the master already"
        if replica.following is not None:
            return f"replica {replica.following[0]} is the master: hand over without accepting a loss"
        record = replica.view.record
        if server.trouble is None and record is not None and record.is_in_sync(replica.config.member):
            return f"replica {server.number} is in sync: it needs no accepted loss to become the master"
        return None
