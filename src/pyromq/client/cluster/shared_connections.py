"""Connections shared by the clients of this process with one client id, because brokers expect one client per id.

Clients of the same `instance` share connections. Blocking clients without an instance share a nameless instance; a
client whose group this instance already has begins another one. All other clients have their own id. Clients on
different event loops share the id but not the connections; blocking clients of an instance have one event loop. Source:
RocketMQ 4.9.8, MQClientManager.
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
from pyromq.net.channel import Pool
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.record import decode
from pyromq.remoting.bodies import HeartbeatBody
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Dispatcher, Later
from pyromq.remoting.headers import CheckTransaction
from pyromq.remoting.rejection_log import RejectionLog


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One client of shared connections: its groups, and its handlers of brokers' requests."""

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
        """Return ("consumer" or "producer", group) if both clients have this group; None if they have none in common.

        Brokers cannot tell apart two clients with one id and one group.
        """
        for kind, mine, taken in (
            ("consumer", self.consumer_groups, other.consumer_groups),
            ("producer", self.producer_groups, other.producer_groups),
        ):
            if both := mine & taken:
                return kind, min(both)
        return None


class Key(NamedTuple):
    """The key of shared connections: clients with equal keys share them."""

    process: int
    addresses: tuple[str, ...]  # addresses of the name servers, or of the address server
    instance: str
    named: bool  # True if the application set `instance`
    loop: int
    kind: tuple[object, ...]  # settings of the connections, see `_kind`


class SharedConnections:
    """The connections of clients with one id on one event loop. Each request of a broker is passed to its client."""

    def __init__(self, key: Key, clock: Clock, connections: ConnectionConfig) -> None:
        self.key = key
        self.members: list[Member] = []
        self.keeps_fields = False
        self.refusals = RejectionLog(clock)
        self._nobody = Dispatcher(refusals=self.refusals)
        self.pool = Pool(self, clock, connections)

    def dispatch(self, call: Call) -> Reply | Future[Reply] | Later:
        return self._dispatcher(call).dispatch(call)

    def refused(self, error: MQError, call: Call) -> Reply:
        return self._dispatcher(call).refused(error, call)

    def failure(self, error: BaseException, call: Call) -> Reply:
        return self._dispatcher(call).failure(error, call)

    def _dispatcher(self, call: Call) -> Dispatcher:
        """Return the dispatcher of the client that has the request's group, as only this client may reply."""
        group = _group(call)
        for member in self.members:
            if call.code in member.dispatcher.codes and (group is None or group in member.groups):
                return member.dispatcher
        return self._nobody


def share_on(loop: asyncio.AbstractEventLoop) -> None:
    """Let clients without an instance on this event loop share connections; blocking clients use this."""
    _sharing_loops.add(loop)


def join(
    addresses: tuple[str, ...],
    instance: str | None,
    member: Member,
    clock: Clock,
    connections: ConnectionConfig = PLAIN,
) -> SharedConnections | None:
    """Add the client to the shared connections of its instance on this event loop, and return them.

    Clients with the same name servers and instance share. Without an instance, on loops of `share_on`, the client joins
    the first nameless instance with equal connection settings in which its group is free. Without an instance on other
    loops, the client shares nothing, and None is returned. Clients of a named instance with different connection
    settings share its name only. Raises `UsageError` if the instance has a consumer, or producer, of the same group in
    this process. Source: MQClientInstance.registerConsumer, registerProducer.
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
    """Remove the client from shared connections; the last client closes them. Idempotent."""
    if member not in shared.members:
        return
    shared.members.remove(member)
    if not shared.members:
        del _instances[shared.key]
        await shared.pool.close()


def new_instance() -> str:
    """Return a unique instance name. Source: RocketMQ 4.9.8, ClientConfig.changeInstanceNameToPID."""
    return f"{os.getpid()}#{time.monotonic_ns()}"


def _taken(member: Member, addresses: tuple[str, ...], instance: str) -> tuple[str, str] | None:
    """Return role and group of `member` that its instance in this process already has; None if they are free."""
    of_instance = (os.getpid(), addresses, instance)
    others = (other for key, shared in _instances.items() if key[:3] == of_instance for other in shared.members)
    return next(filter(None, map(member.taken_by, others)), None)


def _kind(connections: ConnectionConfig) -> tuple[object, ...]:
    """Return the settings by which connections differ. Hooks and signers are compared by identity."""
    watching = [id(each) for each in (connections.signer, *connections.hooks)]
    return connections.tls, connections.serialization, *watching


def _group(call: Call) -> str | None:
    header = call.header
    if isinstance(header, CheckTransaction):
        return decode(call.body).properties.get(Property.PRODUCER_GROUP)
    found = getattr(header, "consumer_group", None) or getattr(header, "group", None)
    return found if isinstance(found, str) else None


_instances: dict[Key, SharedConnections] = {}  # all shared connections of this process
_sharing_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
