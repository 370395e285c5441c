"""Answers administrators' requests to one replica of a set: its state, a planned failover, an accepted loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pyromq.broker.modules import BrokerModule
from pyromq.broker.replication.operating.set_status import figures_of, status_of
from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError, MQError, UsageError
from pyromq.net.tasks import Tasks
from pyromq.remoting.bodies import encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import AcceptLoss, HandOver, ReplicaSetState

if TYPE_CHECKING:
    from pyromq.broker.replication.replica_server import ReplicaServer


def replica_set(server: ReplicaServer, now: Callable[[], float]) -> Callable[[SharedState], BrokerModule]:
    """Return a function that makes a module of a replica's broker. Only this module of the broker knows the replica."""

    def make(state: SharedState) -> BrokerModule:
        processor = ReplicaSetProcessor(server, now)
        state.more_figures = lambda: figures_of(server, now())
        return BrokerModule(answerers=[processor], stop=processor.stop)

    return make


class ReplicaSetProcessor:
    """Answers for the replica whose broker this is."""

    def __init__(self, server: ReplicaServer, now: Callable[[], float]) -> None:
        self._server = server
        self._now = now
        self._tasks = Tasks()

    @answers(ReplicaSetState)
    def state(self, header: ReplicaSetState, call: Call) -> Reply:
        return Reply(body=encode_body(status_of(self._server, self._now())))

    @answers(HandOver)
    def hand_over(self, header: HandOver, call: Call) -> Future[Reply]:
        """Reply once the other replica is the master by the set's record, or with the reason why it is not."""
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
        """Begin the election of this replica. Raises `BrokerError` if the set has a master, or needs no loss."""
        try:
            self._server.accept_loss(header.reason)
        except UsageError as error:
            raise BrokerError(str(error)) from error
        return Reply()

    async def stop(self) -> None:
        await self._tasks.stop()
