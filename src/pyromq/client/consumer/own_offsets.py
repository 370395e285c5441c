"""Offsets that an `OffsetStore` keeps: its functions are called in a thread, one at a time, for many queues at once.

    asked for, one or many queues ──► waiting ── the call before is over ──► called ──► told to all who asked
                                         ▲
    asked for meanwhile ─────────────────┘  a later offset of a queue takes the place of an earlier one

So a store that is slow, or stands still, makes nothing pile up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

from pyromq.client.application_code import called, picture_of, text_of
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.client.offset_store import OffsetStore
from pyromq.errors import DeadlineExceeded, MQError, StoreError
from pyromq.message import MessageQueue

V = TypeVar("V")


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
