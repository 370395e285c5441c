"""Clients of this process that share a client id: they share connections too, as brokers expect of one client.

Only clients that were given the same `instance` do; every other client is one of its own. Clients on different event
loops share the id but not the connections; blocking ones of an instance are on one loop.
Source: RocketMQ 4.9.8, MQClientManager.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from pyromq.clock import Clock
from pyromq.errors import MQError, UsageError
from pyromq.message import Property
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.pool import Pool
from pyromq.record import decode
from pyromq.remoting.bodies import HeartbeatBody
from pyromq.remoting.command import Answered, Call, Reply
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import CheckTransaction
from pyromq.remoting.later import Later
from pyromq.remoting.refusals import Refusals


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One client: its groups, and its answers to what brokers ask."""

    announce: Callable[[], HeartbeatBody | None]
    dispatcher: Dispatcher

    @property
    def consumer_groups(self) -> set[str]:
        body = self.announce()
        return {consumer.group for consumer in body.consumers} if body is not None else set()

    @property
    def producer_groups(self) -> set[str]:
        body = self.announce()
        return {producer.group for producer in body.producers} if body is not None else set()

    @property
    def groups(self) -> set[str]:
        return self.consumer_groups | self.producer_groups

    def check_beside(self, other: Member, instance: str) -> None:
        """Raise `UsageError` where both consume, or both produce, for one group: brokers could not tell them apart."""
        for kind, mine, taken in (
            ("consumer", self.consumer_groups, other.consumer_groups),
            ("producer", self.producer_groups, other.producer_groups),
        ):
            if both := mine & taken:
                raise UsageError(
                    f"this process has a {kind} of group {min(both)} with instance {instance!r} already; "
                    f"give one of the two another {kind.capitalize()}Config.instance"
                )


class SharedConnections:
    """The connections of clients with one id on one event loop; what brokers ask goes to the client it is for."""

    def __init__(self, key: tuple[object, ...], clock: Clock, connections: ConnectionConfig) -> None:
        self.key = key
        self.members: list[Member] = []
        self.keeps_fields = False
        self.refusals = Refusals(clock)
        self.pool = Pool(self, clock, connections)

    def dispatch(self, call: Call) -> Answered | Future[Answered] | Later:
        return self._member(call).dispatcher.dispatch(call)

    def refused(self, error: MQError, call: Call) -> Reply:
        return self._member(call).dispatcher.refused(error, call)

    def failure(self, error: BaseException, call: Call) -> Reply:
        return self._member(call).dispatcher.failure(error, call)

    def dispatch_run(self, calls: list[Call]) -> None:
        """Answer nothing at once: each request is for a member."""

    def _member(self, call: Call) -> Member:
        group = _group(call)
        return next((member for member in self.members if group in member.groups), self.members[0])


def join(
    named: tuple[tuple[str, ...], str], member: Member, clock: Clock, connections: ConnectionConfig = PLAIN
) -> SharedConnections:
    """Return the shared connections on this event loop, with the client among their members.

    `named` is what is shared by: the name servers, and the name of the instance.

    Members whose connections are made differently share the id only.

    Raises `UsageError` when the process has a client of that instance in the same group already: a second consumer, or
    a second producer. Source: MQClientInstance.registerConsumer, registerProducer.
    """
    process = (os.getpid(), *named)
    for shared in _instances.values():
        for other in shared.members if shared.key[:3] == process else ():
            member.check_beside(other, named[1])
    key = (*process, id(asyncio.get_running_loop()), *_kind(connections))
    shared = _instances.setdefault(key, SharedConnections(key, clock, connections))
    shared.members.append(member)
    return shared


async def leave(shared: SharedConnections, member: Member) -> None:
    """Take the client out; the last one closes the connections."""
    shared.members.remove(member)
    if not shared.members:
        del _instances[shared.key]
        await shared.pool.close()


def _kind(connections: ConnectionConfig) -> tuple[object, ...]:
    """What tells connections apart; hooks and signers need not be hashable, and equal ones are not the same."""
    watching = [id(each) for each in (connections.signer, *connections.hooks)]
    return connections.tls, connections.serialization, *watching


def _group(call: Call) -> str | None:
    header = call.header
    if isinstance(header, CheckTransaction):
        return decode(call.body).properties.get(Property.PRODUCER_GROUP)
    found = getattr(header, "consumer_group", None) or getattr(header, "group", None)
    return found if isinstance(found, str) else None


_instances: dict[tuple[object, ...], SharedConnections] = {}  # of this process: that is what an instance is
