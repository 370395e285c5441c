"""How far a group is in its queues: kept by their brokers, or by an `OffsetStore`. Consumers do not ask which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

from pyromq.client.application_code import called, picture_of, text_of
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.client.offset_store import OffsetStore
from pyromq.errors import DeadlineExceeded, MQError, StoreError
from pyromq.message import MessageQueue

V = TypeVar("V")


class GroupOffsets(Protocol):
    """The offsets of one group."""

    async def start(self, queue: MessageQueue, *, keep: bool = True) -> int:
        """Return where to begin in a queue; with `keep`, that is stored where nothing was.

        Raises `MQError` when it cannot be told now.
        """

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the offset stored for a queue; None if there is none. Raises `MQError`."""

    async def save(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, MQError]:
        """Store offsets, and return why which of them are not stored; all others are when this returns."""


class BrokerOffsets:
    """Offsets that the brokers of the queues keep, as is usual. Source: RocketMQ 4.9.8, RemoteBrokerOffsetStore."""

    def __init__(self, group: str, cluster: ClusterClient, config: ConsumerConfig) -> None:
        self._group = group
        self._config = config
        self._offsets = QueueOffsets(cluster, timeout=config.timeout)

    async def start(self, queue: MessageQueue, *, keep: bool = True) -> int:
        return await self._offsets.start(self._group, queue, self._config, keep=keep)

    async def stored(self, queue: MessageQueue) -> int | None:
        return await self._offsets.committed(self._group, queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, MQError]:
        failures = await asyncio.gather(*(self._save(queue, offset) for queue, offset in offsets.items()))
        return {queue: failure for queue, failure in zip(offsets, failures, strict=True) if failure is not None}

    async def _save(self, queue: MessageQueue, offset: int) -> MQError | None:
        try:
            await self._offsets.commit(self._group, queue, offset)
        except MQError as error:
            return error
        return None


def group_offsets(
    group: str, cluster: ClusterClient, config: ConsumerConfig, *, store: OffsetStore | None
) -> GroupOffsets:
    """Return the offsets that a store keeps; those that brokers keep where there is none."""
    return BrokerOffsets(group, cluster, config) if store is None else OwnOffsets(group, cluster, config, store)


class OwnOffsets:
    """The offsets of one group in a store; see `GroupOffsets`."""

    def __init__(self, group: str, cluster: ClusterClient, config: ConsumerConfig, store: OffsetStore) -> None:
        self._group = group
        self._names = cluster.names
        self._config = config
        self._offsets = QueueOffsets(cluster, timeout=config.timeout)
        name, turn = type(store).__name__, asyncio.Lock()
        self._load = _Calls[None](partial(_load, store, group), f"load of {name}", turn, timeout=config.timeout)
        self._save = _Calls[int](partial(_save, store, group), f"save of {name}", turn, timeout=config.timeout)

    async def start(self, queue: MessageQueue, *, keep: bool = True) -> int:
        if (stored := await self.stored(queue)) is not None:
            return stored
        offset = await self._offsets.start_without_stored(self._group, queue, self._config)
        if keep:  # who comes later, after a crash of the first member, begins there too
            for failure in (await self.save({queue: offset})).values():
                raise failure
        return offset

    async def stored(self, queue: MessageQueue) -> int | None:
        wire_queue = self._names.wrap_queue(queue)
        return (await self._load.join({wire_queue: None})).get(wire_queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, MQError]:
        if not offsets:
            return {}
        try:
            await self._save.join({self._names.wrap_queue(queue): offset for queue, offset in offsets.items()})
        except MQError as error:
            return dict.fromkeys(offsets, error)
        return {}


class _Calls(Generic[V]):
    """The calls of one function of a store; `turn` is held by the one that runs, whoever waits for it or not."""

    def __init__(
        self,
        function: Callable[[dict[MessageQueue, V]], dict[MessageQueue, int]],
        name: str,
        turn: asyncio.Lock,
        *,
        timeout: float,
    ) -> None:
        self._function = function
        self._name = name
        self._turn = turn
        self._timeout = timeout
        self._asked: dict[MessageQueue, V] = {}
        self._next: asyncio.Future[tuple[object, BaseException | None]] | None = None  # the call that has not begun

    async def join(self, asked: dict[MessageQueue, V]) -> dict[MessageQueue, int]:
        """Return what the next call returns, which asks for this as well. Raises `MQError`."""
        self._asked |= asked
        if self._next is None:
            self._next = asyncio.ensure_future(self._run())
        try:
            async with asyncio.timeout(self._timeout):
                found, failure = await asyncio.shield(self._next)
        except TimeoutError:
            raise DeadlineExceeded(f"{self._name} took longer than {self._timeout:g} s") from None
        if isinstance(failure, MQError):
            raise failure
        if failure is not None:
            raise StoreError(f"{self._name} failed: {text_of(failure)}") from failure
        assert isinstance(found, dict)
        return found

    async def _run(self) -> tuple[object, BaseException | None]:
        async with self._turn:
            asked, self._asked, self._next = self._asked, {}, None
            return await asyncio.to_thread(called, self._function, asked)


def _load(store: OffsetStore, group: str, queues: dict[MessageQueue, None]) -> dict[MessageQueue, int]:
    found = store.load(group, list(queues))
    if not isinstance(found, Mapping):
        raise StoreError(f"load of {type(store).__name__} returned {picture_of(found)}; it must be a dict of offsets")
    for queue, offset in found.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise StoreError(f"load of {type(store).__name__} returned {picture_of(offset)} as offset of {queue}")
    return dict(found)


def _save(store: OffsetStore, group: str, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
    store.save(group, offsets)
    return offsets
