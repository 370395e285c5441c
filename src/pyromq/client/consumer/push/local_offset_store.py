"""Offsets of a broadcast consumer: each member keeps its own, in a file that the Java client reads and writes too.

    <folder>/<client id>/<group>/offsets.json          offsets.json.bak: the content before

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42}}

The keys are objects, as fastjson writes them and JSON does not allow. Brokers are told nothing.
Source: RocketMQ 4.9.8, LocalFileOffsetStore, OffsetSerializeWrapper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import field

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.errors import MQError, ProtocolError, StoreCorrupt, StoreError
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import Body, decode_body, encode_body
from pyromq.store.json_file import JsonFile

logger = logging.getLogger(__name__)


class _Content(Body):
    offsets: dict[MessageQueue, int] = field(name="offsetTable", default_factory=dict)


class OffsetFile:
    """The file of one member of one group. `load` and `save` block on the disk; only one of them runs at a time."""

    def __init__(self, folder: Path, client_id: str, group: str) -> None:
        self.path = folder / client_id / group / "offsets.json"
        self._file = JsonFile(self.path)
        self._read = b""  # what `_offsets` was read from or written as
        self._offsets: dict[MessageQueue, int] = {}

    def load(self) -> dict[MessageQueue, int]:
        """Return all offsets, the previous ones where the file is damaged; {} where there is none.

        Raises `StoreCorrupt` when both are damaged, `StoreError` when the folder cannot be read.
        """
        try:
            content = self._file.load() or b""
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        if content != self._read:
            try:
                self._offsets = _decode(content)
            except ProtocolError as error:
                logger.warning("%s is damaged, taking the one before: %s", self.path, error)
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
        """Store these offsets; those of other queues stay. On disk when this returns. Raises `StoreNotWritable`."""
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
    return decode_body(_Content, content).offsets if content else {}


class LocalOffsetStore:
    """Finds where the queues of a broadcast consumer begin, and stores how far they are consumed.

    The file is opened with the first question: before the start nobody knows the client id.
    """

    def __init__(self, group: str, cluster: ClusterClient, config: ConsumerConfig) -> None:
        self._group = group
        self._cluster = cluster
        self._config = config
        self._offsets = QueueOffsets(cluster, timeout=config.timeout)
        self._file: OffsetFile | None = None
        self._stored: dict[MessageQueue, int] = {}
        self._saving: asyncio.Future[None] | None = None

    async def start(self, queue: MessageQueue) -> int:
        """Return where to begin in a queue. Raises `MQError` when it cannot be told now."""
        if (stored := await self.stored(queue)) is not None:
            return stored
        return await self._offsets.start_without_stored(self._group, queue, self._config)

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the offset stored for a queue; None if there is none. Raises `StoreError`."""
        if self._file is None:
            self._open()
        return self._stored.get(queue)

    async def save(self, queues: Iterable[OwnedQueue]) -> None:
        """Store the safe offset of the queues that have moved; on disk when this returns.

        What cannot be stored is logged; another try comes with the next save. When cancelled, a save that has
        begun still ends, and before the next one.
        """
        moved = {owned: owned.process_queue.safe_offset for owned in queues}
        moved = {owned: offset for owned, offset in moved.items() if offset != owned.committed}
        if moved:
            self._saving = asyncio.ensure_future(self._save(moved, after=self._saving))
        if self._saving is not None:
            await asyncio.shield(self._saving)

    def _open(self) -> None:
        folder = self._config.offsets_folder or Path.home() / ".rocketmq_offsets"
        file = OffsetFile(folder, self._cluster.client_id, self._group)
        self._stored = file.load()  # once, and a few kilobytes: not worth a thread
        self._file = file
        logger.info("group %s: %d offsets loaded from %s", self._group, len(self._stored), file.path)

    async def _save(self, moved: dict[OwnedQueue, int], *, after: asyncio.Future[None] | None) -> None:
        assert self._file is not None, "who owns queues has asked where they start"
        if after is not None:
            await asyncio.wait((after,))  # two threads would mix up the files
        offsets = {owned.queue: offset for owned, offset in moved.items()}
        try:
            await asyncio.to_thread(self._file.save, offsets)
        except MQError as error:
            logger.warning("group %s: offsets are not stored yet: %s", self._group, error)
        else:
            self._stored |= offsets
            for owned, offset in moved.items():
                owned.committed = offset
