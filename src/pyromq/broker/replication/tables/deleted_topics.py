"""The deleted topics of a replica set, with the log offset of each deletion. Earlier records are in no queue.

A follower may receive the deletion of a topic before earlier records of the topic. So a deletion takes effect when the
follower's log has reached its log offset. The table has a deletion until retention has deleted that part of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

import msgspec

from pyromq.logs import logger_of
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore
from pyromq.store.table_file import RunSoon, TableFile, at_once, has_failed

logger = logger_of(__name__)


class DeletedTopics:
    """The table topic -> log offset of its last deletion. `version` counts changes."""

    def __init__(self, store: MessageStore, file: JsonFile, run_soon: RunSoon = at_once) -> None:
        self.version = 0
        self._store = store
        self._file = file
        self._saving = TableFile(file, _encoded, run_soon)
        self.close = self._saving.close  # blocks until all changes are on disk, or have failed
        self._table: dict[str, int] = {}
        self._ahead: dict[str, int] = {}  # deletions that have not taken effect here
        self._saved: Future[None] | None = None

    def load(self) -> None:
        """Read the table from disk. Raises `StoreCorrupt` naming the file."""
        self._table = self._file.read(_decoded) or {}
        self._ahead = dict(self._table)

    def note(self, topic: str) -> Future[None]:
        """Store that the master deletes a topic now. The future completes when the table is on disk.

        The caller must delete the topic's queues.
        """
        return self._change(self._table | {topic: self._store.max_log_offset})

    def encode(self) -> bytes:
        return _encoded(self._table)

    def adopt(self, data: bytes) -> Future[None] | None:
        """Replace the table by the master's. The future completes when the table is on disk; None: it is already.

        Raises `msgspec.DecodeError`.
        """
        table = _decoded(data)
        if table == self._table and (self._saved is None or not has_failed(self._saved)):
            return self._saved
        self._ahead = table | self._ahead if table == self._table else dict(table)
        return self._change(table)

    def _change(self, table: Mapping[str, int]) -> Future[None]:
        begin = self._store.min_log_offset
        self._table = {topic: offset for topic, offset in table.items() if offset >= begin}
        self.version += 1
        table = self._table
        self._saved = self._saving.save(lambda: table, order=self.version)
        return self._saved

    def apply(self) -> None:
        """Drop the queue entries of deleted topics whose deletion the log here has reached. For followers."""
        end = self._store.max_log_offset
        for topic, offset in list(self._ahead.items()):
            if offset <= end:
                del self._ahead[topic]
                if self._store.drop_entries(topic, offset):
                    logger.info("topic %s: the master has deleted it at log offset %d", topic, offset)

    def lead(self) -> None:
        """Apply all other deletions at the end of the log here, because this broker becomes the master."""
        end = self._store.max_log_offset
        if self._table.keys() & self._ahead.keys():
            self._ahead = {topic: min(offset, end) for topic, offset in self._ahead.items()}
            self.apply()
            self._change({topic: min(offset, end) for topic, offset in self._table.items()})


_decoded = partial(msgspec.json.decode, type=dict[str, int])


def _encoded(table: Mapping[str, int]) -> bytes:
    return msgspec.json.encode(table)
