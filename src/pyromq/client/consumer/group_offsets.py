"""The committed offsets of one group: kept by the brokers, by an `OffsetStore`, or in files of a broadcast consumer.

The Java client reads and writes the same file of a broadcast consumer:

    <folder>/<client id>/<group>/offsets.json          offsets.json.bak has the previous content

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42}}

The keys are objects, as fastjson writes them and JSON does not allow.
Source: RocketMQ 4.9.8, RemoteBrokerOffsetStore, LocalFileOffsetStore, OffsetSerializeWrapper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from msgspec import field

from pyromq.client.application_code import called, picture_of, text_of
from pyromq.client.client_config import ConsumerConfig, OffsetStore
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.errors import DeadlineExceeded, MQError, ProtocolError, StoreCorrupt, StoreError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.tasks import shared
from pyromq.platforms import platform
from pyromq.remoting.bodies import FILE, Body, decode_body, encode_body
from pyromq.store.json_file import JsonFile

logger = logger_of(__name__)

V = TypeVar("V")


class GroupOffsets(Protocol):
    """Reads and commits the offsets of one group."""

    async def start(self, queue: MessageQueue, *, keep: bool = True) -> int:
        """Return the offset to begin at in a queue. With `keep`, commit this offset if none was committed.

        Raises `MQError` if the offset cannot be found now.
        """

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of a queue; None if none was committed. Raises `MQError`."""

    async def save(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, MQError]:
        """Commit offsets. Return the errors of failed commits by queue; the other offsets are then stored."""


class BrokerOffsets:
    """Offsets kept by the brokers of the queues, the default. Source: RocketMQ 4.9.8, RemoteBrokerOffsetStore."""

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
    """Return the group's offsets: kept by `store`, or by the brokers if `store` is None."""
    return BrokerOffsets(group, cluster, config) if store is None else OwnOffsets(group, cluster, config, store)


class OwnOffsets:
    """Offsets kept by an application's `OffsetStore`."""

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
        if keep:  # so that the next owner begins at this offset, too, if this member crashes
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
    """Runs one function of a store in a thread, one call at a time.

    Arguments that arrive during a call are passed together in the next call. A running call holds `turn` until it
    returns, even after its callers have timed out.
    """

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
        # Result of the next call, which has not begun yet.
        self._next: asyncio.Future[tuple[object, BaseException | None]] | None = None

    async def join(self, asked: dict[MessageQueue, V]) -> dict[MessageQueue, int]:
        """Add arguments to the next call and return that call's result, which may contain queues of other callers.

        Raises `DeadlineExceeded` after the timeout, and the function's `MQError`; other exceptions become `StoreError`.
        """
        self._asked |= asked
        if self._next is None:
            self._next = asyncio.ensure_future(self._run())
        try:
            async with asyncio.timeout(self._timeout):
                found, failure = await shared(self._next)
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


class _Content(Body):
    offsets: dict[MessageQueue, int] = field(name="offsetTable", default_factory=dict)


class OffsetFile:
    """The offset file of one member of one group.

    `load` and `save` block on the disk; callers must run only one of them at a time.
    """

    def __init__(self, folder: Path, client_id: str, group: str) -> None:
        self.path = folder / platform.file_name(client_id) / platform.file_name(group) / "offsets.json"
        self._file = JsonFile(self.path)
        self._read = b""  # the file content from which `_offsets` was decoded
        self._offsets: dict[MessageQueue, int] = {}

    def load(self) -> dict[MessageQueue, int]:
        """Return all offsets; those of the file's previous version if the file is damaged; {} if there is no file.

        Raises `StoreCorrupt` if both versions are damaged, `StoreError` if the folder cannot be read.
        """
        try:
            content = self._file.load() or b""
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        if content != self._read:
            try:
                self._offsets = _decode(content)
            except ProtocolError as error:
                logger.warning("%s is damaged, its previous version is used: %s", self.path, error)
                self._offsets = self._load_previous(error)
            self._read = content
        return dict(self._offsets)

    def _load_previous(self, damage: ProtocolError) -> dict[MessageQueue, int]:
        previous = self.path.with_name(self.path.name + ".bak")
        try:
            return _decode(previous.read_bytes())
        except (FileNotFoundError, ProtocolError) as error:
            raise StoreCorrupt(
                f"neither {self.path} nor its .bak holds offsets; restore one, or remove both to begin again: {damage}"
            ) from error

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets and keep those of other queues. The file is on disk when this returns.

        Raises `StoreNotWritable`.
        """
        try:
            table = self.load()
        except StoreCorrupt as error:
            logger.warning("offsets of other queues are lost: %s", error)
            table = {}
        table.update(offsets)
        content = encode_body(_Content(offsets=table))
        self._file.save(content)
        self._read, self._offsets = content, table


def _decode(content: bytes) -> dict[MessageQueue, int]:
    return decode_body(_Content, content, FILE).offsets if content else {}


class LocalOffsetStore:
    """An `OffsetStore` with one `OffsetFile` for each group, below `folder` or `~/.rocketmq_offsets`.

    `client_id()` is called at the first use, which must be after the client's start.
    """

    def __init__(self, folder: Path | None, client_id: Callable[[], str]) -> None:
        self._folder = folder or Path.home() / ".rocketmq_offsets"
        self._client_id = client_id
        self._files: dict[str, OffsetFile] = {}  # offset files by group

    def load(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the stored offsets of these queues; queues without one are left out. Raises `StoreError`."""
        offsets = self._file(group).load()
        return {queue: offsets[queue] for queue in queues if queue in offsets}

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store a group's offsets. They are on disk when this returns. Raises `StoreNotWritable`."""
        self._file(group).save(offsets)

    def _file(self, group: str) -> OffsetFile:
        if (file := self._files.get(group)) is None:
            file = self._files[group] = OffsetFile(self._folder, self._client_id(), group)
            logger.info("group %s: offsets are kept in %s", group, file.path)
        return file
