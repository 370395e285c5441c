"""Clients of this process that share a client id: they share connections too, as brokers expect of one client.

Only clients that were given the same `instance` do; every other client is one of its own. Clients on different event
loops, as blocking ones are, share the id but not the connections. Source: RocketMQ 4.9.8, MQClientManager.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import cast

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.message import Property
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.pool import Pool
from pyromq.record import decode
from pyromq.remoting.bodies import HeartbeatBody
from pyromq.remoting.command import Answered, Call
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import CheckTransaction


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
    def groups(self) -> set[str]:
        body = self.announce()
        return self.consumer_groups | ({producer.group for producer in body.producers} if body is not None else set())


class SharedConnections:
    """The connections of clients with one id on one event loop; what brokers ask goes to the client it is for."""

    def __init__(self, key: tuple[object, ...], clock: Clock, connections: ConnectionConfig) -> None:
        self.key = key
        self.members: list[Member] = []
        self.keeps_fields = False
        # In all that connections need of it, this is a dispatcher.
        self.pool = Pool(cast(Dispatcher, self), clock, connections)

    def dispatch(self, call: Call) -> Answered | Future[Answered]:
        return self._member(call).dispatcher.dispatch(call)

    def dispatch_burst(self, calls: list[Call]) -> list[Answered | Future[Answered]]:
        return [self.dispatch(call) for call in calls]

    def _member(self, call: Call) -> Member:
        group = _group(call)
        return next((member for member in self.members if group in member.groups), self.members[0])


def join(
    named: tuple[tuple[str, ...], str], member: Member, clock: Clock, connections: ConnectionConfig = PLAIN
) -> SharedConnections:
    """Return the shared connections on this event loop, with the client among their members.

    `named` is what is shared by: the name servers, and the name of the instance.

    Members whose connections are made differently share the id only.

    Raises `UsageError` when the process has a client of that instance in the same consumer group already.
    """
    process = (os.getpid(), *named)
    mine = member.consumer_groups
    for shared in _instances.values():
        for other in shared.members if shared.key[:3] == process else ():
            if taken := mine & other.consumer_groups:
                raise UsageError(
                    f"this process has a consumer of group {min(taken)} with instance {named[1]!r} already; "
                    "give one of the two another ConsumerConfig.instance"
                )
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
