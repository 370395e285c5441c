"""Clients of this process that share a client id: they share connections too, as brokers expect of one client.

Clients that were given the same `instance` do. So do blocking clients that were given none, as long as no two consume,
or produce, for one group: who finds its group taken begins another nameless instance. Every other client is one of its
own. Clients on different event loops share the id but not the connections; blocking ones of an instance have one loop.
Source: RocketMQ 4.9.8, MQClientManager.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakSet

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
from pyromq.remoting.rejection_log import RejectionLog


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

    def taken_by(self, other: Member) -> tuple[str, str] | None:
        """Return ("consumer" | "producer", group) where both are that of one group: brokers cannot tell them apart."""
        for kind, mine, taken in (
            ("consumer", self.consumer_groups, other.consumer_groups),
            ("producer", self.producer_groups, other.producer_groups),
        ):
            if both := mine & taken:
                return kind, min(both)
        return None


class Key(NamedTuple):
    """What clients have in common that share connections."""

    process: int
    addresses: tuple[str, ...]  # of the name servers
    instance: str
    named: bool  # by the application
    loop: int
    kind: tuple[object, ...]  # of connections


class SharedConnections:
    """The connections of clients with one id on one event loop; what brokers ask goes to the client it is for."""

    def __init__(self, key: Key, clock: Clock, connections: ConnectionConfig) -> None:
        self.key = key
        self.members: list[Member] = []
        self.keeps_fields = False
        self.refusals = RejectionLog(clock)
        self._nobody = Dispatcher(refusals=self.refusals)
        self.pool = Pool(self, clock, connections)

    def dispatch(self, call: Call) -> Answered | Future[Answered] | Later:
        return self._dispatcher(call).dispatch(call)

    def refused(self, error: MQError, call: Call) -> Reply:
        return self._dispatcher(call).refused(error, call)

    def failure(self, error: BaseException, call: Call) -> Reply:
        return self._dispatcher(call).failure(error, call)

    def dispatch_run(self, calls: list[Call]) -> None:
        """Answer nothing at once: each request is for a member."""

    def _dispatcher(self, call: Call) -> Dispatcher:
        """Return that of the client whose group is meant: nobody else may decide a transaction, for one."""
        group = _group(call)
        for member in self.members:
            if call.code in member.dispatcher.codes and (group is None or group in member.groups):
                return member.dispatcher
        return self._nobody


def share_on(loop: asyncio.AbstractEventLoop) -> None:
    """Let clients on this event loop that were given no instance share connections, too."""
    _sharing_loops.add(loop)


def join(
    addresses: tuple[str, ...],
    instance: str | None,
    member: Member,
    clock: Clock,
    connections: ConnectionConfig = PLAIN,
) -> SharedConnections | None:
    """Return the shared connections on this event loop, with the client among their members.

    Clients share that have the same name servers and instance. Without an instance the client joins the first nameless
    one whose connections are made as its own and in which its group is free, on loops where that is so (`share_on`);
    elsewhere it shares nothing, None. Members of a named instance whose connections are made differently share its name
    only.

    Raises `UsageError` when the process has a client of that instance in the same group already: a second consumer, or
    a second producer. Source: MQClientInstance.registerConsumer, registerProducer.
    """
    loop = asyncio.get_running_loop()
    kind = _kind(connections)
    if instance is not None:
        if taken := _taken(member, addresses, instance):
            role, group = taken
            raise UsageError(
                f"this process has a {role} of group {group} with instance {instance!r} already; "
                f"give one of the two another {role.capitalize()}Config.instance"
            )
        named = True
    elif loop in _sharing_loops:
        nameless = (
            key.instance
            for key in _instances
            if key == Key(os.getpid(), addresses, key.instance, False, id(loop), kind)
        )
        free = (name for name in nameless if not _taken(member, addresses, name))
        instance, named = next(free, None) or new_instance(), False
    else:
        return None
    key = Key(os.getpid(), addresses, instance, named, id(loop), kind)
    shared = _instances.setdefault(key, SharedConnections(key, clock, connections))
    shared.members.append(member)
    return shared


async def leave(shared: SharedConnections, member: Member) -> None:
    """Take the client out; the last one closes the connections. Idempotent."""
    if member not in shared.members:
        return
    shared.members.remove(member)
    if not shared.members:
        del _instances[shared.key]
        await shared.pool.close()


def new_instance() -> str:
    """Return a name that no other instance has. Source: RocketMQ 4.9.8, ClientConfig.changeInstanceNameToPID."""
    return f"{os.getpid()}#{time.monotonic_ns()}"


def _taken(member: Member, addresses: tuple[str, ...], instance: str) -> tuple[str, str] | None:
    """Return what the client is already in an instance of this process, as `Member.taken_by`."""
    of_instance = (os.getpid(), addresses, instance)
    others = (other for key, shared in _instances.items() if key[:3] == of_instance for other in shared.members)
    return next(filter(None, map(member.taken_by, others)), None)


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


_instances: dict[Key, SharedConnections] = {}  # of this process: that is what an instance is
_sharing_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
