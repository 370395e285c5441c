"""Keeps messages of push consumers invisible at brokers that do not renew the invisible time, as Java's.

Each renewal gives the message another receipt handle, and the client knows only the first. Its calls are translated.
Source: RocketMQ 5.3.3, ReceiptHandleProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from pyromq.errors import LimitReached, MQError
from pyromq.logs import logger_of
from pyromq.net.tasks import Tasks, every
from pyromq.proxy.client_table import GrpcClient
from pyromq.proxy.cluster_access import ClusterAccess
from pyromq.proxy.grpc_dispatch import Caller
from pyromq.quota import Quota
from pyromq.remoting.receipt_handle import ReceiptHandle

logger = logger_of(__name__)

RENEWED_SECONDS = 60.0  # invisible time of a push consumer's messages, and of each renewal
TURN_SECONDS = 5.0  # interval of renewals. Source: ProxyConfig
AHEAD_SECONDS = 20.0  # time before the end at which a message is renewed: enough for a silent broker and more tries
LONGEST_SECONDS = 3 * 3600.0  # limit of the time that a message is renewed: a listener may hang. Source: ProxyConfig
GONE_SECONDS = 1.0  # messages of a client that is gone become visible after this. Source: ReceiptHandleProcessor
MAX_RENEWED = 50_000  # limit of renewed messages, 0.5 kB each; a client caches about 1,000
AT_ONCE = 64  # renewals that wait for a broker at the same time

# Changes the invisible time of a message of a group and topic, in ms, and returns the new receipt handle.
Change = Callable[[ClusterAccess, str, str, ReceiptHandle, int], Awaitable[ReceiptHandle]]
_Key = tuple[str, str, ReceiptHandle]  # group, topic, and the handle that the client knows


@dataclass(slots=True, eq=False)
class _Renewed:
    """A message. `ends` is when it becomes visible, and `since` when it was popped, in monotonic seconds."""

    handle: ReceiptHandle
    since: float
    ends: float
    is_finished: bool = False  # the client acknowledges or returns the message: no more renewals
    renewed: asyncio.Event | None = None  # while a renewal is in progress; then it is set


@dataclass(slots=True, eq=False)
class _Holder:
    """A client's messages, in the order in which their invisible times end."""

    access: ClusterAccess
    client: GrpcClient
    messages: dict[_Key, _Renewed] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        return self.access.clients.find(self.client.client_id) is not self.client

    def due(self, now: float) -> list[tuple[_Key, _Renewed]]:
        """Return the messages whose invisible time ends soon. If the client is gone, return all its messages."""
        if self.is_gone:
            return list(self.messages.items())
        return list(takewhile(lambda each: each[1].ends <= now + AHEAD_SECONDS, self.messages.items()))


class Renewals:
    """Renews the invisible times of messages until their clients acknowledge or return them."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._holders: dict[GrpcClient, _Holder] = {}
        self._quota: Quota[GrpcClient] = Quota("MAX_RENEWED", MAX_RENEWED)
        self._tasks = Tasks()
        self.close = self._tasks.stop
        self._runs = False
        self._busy: set[str] = set()  # brokers that have not answered all renewals of an earlier turn

    @property
    def count(self) -> int:
        return self._quota.used

    @property
    def are_under_way(self) -> bool:
        return bool(self._busy)

    def add(
        self, access: ClusterAccess, client: GrpcClient, group: str, topic: str, handles: Iterable[ReceiptHandle]
    ) -> None:
        """Renew messages that a client has received. Messages above the limit are redelivered when their time ends."""
        if not self._runs:
            self._runs = True
            self._tasks.start(every(TURN_SECONDS, self._turn, access.clock), name="renew invisible times")
        now = access.clock.monotonic()
        for handle in handles:
            try:
                self._quota.acquire(client, text="the client works on too many messages")
            except LimitReached as error:
                logger.info("messages of group %s become visible after %g s: %s", group, RENEWED_SECONDS, error)
                return
            holder = self._holders.setdefault(client, _Holder(access, client))
            holder.messages[group, topic, handle] = _Renewed(handle, now, now + RENEWED_SECONDS)

    async def newest(
        self, caller: Caller, group: str, topic: str, handles: Iterable[ReceiptHandle]
    ) -> list[ReceiptHandle]:
        """Return the newest receipt handle for each handle that a client knows. Renewals of these messages end.

        The handles stay known until `forget`, or until the messages become visible: the client may repeat its call.
        """
        found = []
        holder = self._holder(caller)
        for handle in handles:
            message = holder.messages.get((group, topic, handle)) if holder is not None else None
            if message is not None:
                message.is_finished = True
                if message.renewed is not None:
                    await message.renewed.wait()
            found.append(handle if message is None else message.handle)
        return found

    def forget(self, caller: Caller, group: str, topic: str, handles: Iterable[ReceiptHandle]) -> None:
        """Remove messages, by the handles that the client knows."""
        if (holder := self._holder(caller)) is not None:
            for handle in handles:
                self._remove(holder, (group, topic, handle))

    def _holder(self, caller: Caller) -> _Holder | None:
        client = caller.access.clients.find(caller.client_id)
        return self._holders.get(client) if client is not None else None

    def _remove(self, holder: _Holder, key: _Key) -> None:
        if holder.messages.pop(key, None) is not None:
            self._quota.release(holder.client)
        if not holder.messages:
            self._holders.pop(holder.client, None)

    def _turn(self) -> None:
        """Start the renewals that are due, of each broker by themselves: one may be silent."""
        due: dict[str, list[tuple[_Holder, _Key, _Renewed]]] = {}
        for holder in list(self._holders.values()):
            now = holder.access.clock.monotonic()
            for key, message in holder.due(now):
                if message.ends <= now:
                    self._remove(holder, key)
                elif now - message.since < LONGEST_SECONDS:
                    due.setdefault(message.handle.broker_name, []).append((holder, key, message))
        for broker_name in due.keys() - self._busy:
            self._busy.add(broker_name)
            self._tasks.start(self._renew_all(broker_name, due[broker_name]), name="renew invisible times at a broker")

    async def _renew_all(self, broker_name: str, due: list[tuple[_Holder, _Key, _Renewed]]) -> None:
        try:
            for at in range(0, len(due), AT_ONCE):
                await asyncio.gather(*(self._renew(*each) for each in due[at : at + AT_ONCE]))
        finally:
            self._busy.discard(broker_name)

    async def _renew(self, holder: _Holder, key: _Key, message: _Renewed) -> None:
        if message.is_finished:
            return
        group, topic, _ = key
        is_last = holder.is_gone
        seconds = GONE_SECONDS if is_last else RENEWED_SECONDS
        ends = holder.access.clock.monotonic() + seconds
        message.renewed = asyncio.Event()
        try:
            message.handle = await self._change(holder.access, group, topic, message.handle, int(seconds * 1000))
        except MQError as error:
            logger.info("a message of group %s is not renewed: %s", group, error)
            if error.retriable:  # the next turn tries again, until the message becomes visible
                return
            is_last = True
        finally:
            message.renewed.set()
            message.renewed = None
        if is_last:
            self._remove(holder, key)
        elif key in holder.messages:  # it has not become visible meanwhile
            message.ends = ends
            holder.messages[key] = holder.messages.pop(key)
