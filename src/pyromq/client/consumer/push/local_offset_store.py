"""Offsets of a broadcast consumer: each member keeps its own, in a file that the Java client reads and writes too.

    <folder>/<client id>/<group>/offsets.json          offsets.json.bak: the content before

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42}}

The keys are objects, as fastjson writes them and JSON does not allow. Brokers are told nothing.
Source: RocketMQ 4.9.8, LocalFileOffsetStore, OffsetSerializeWrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from msgspec import field

from pyromq.errors import ProtocolError, StoreCorrupt, StoreError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import FILE, Body, decode_body, encode_body
from pyromq.store.json_file import JsonFile

logger = logger_of(__name__)


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
    return decode_body(_Content, content, FILE).offsets if content else {}


class LocalOffsetStore:
    """An `OffsetStore` of such files. Before the start nobody knows the client id: it is asked with the first call."""

    def __init__(self, folder: Path | None, client_id: Callable[[], str]) -> None:
        self._folder = folder or Path.home() / ".rocketmq_offsets"
        self._client_id = client_id
        self._files: dict[str, OffsetFile] = {}  # by group

    def load(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offsets stored. Raises `StoreError`."""
        offsets = self._file(group).load()
        return {queue: offsets[queue] for queue in queues if queue in offsets}

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets; on disk when this returns. Raises `StoreNotWritable`."""
        self._file(group).save(offsets)

    def _file(self, group: str) -> OffsetFile:
        if (file := self._files.get(group)) is None:
            file = self._files[group] = OffsetFile(self._folder, self._client_id(), group)
            logger.info("group %s: offsets are kept in %s", group, file.path)
        return file
