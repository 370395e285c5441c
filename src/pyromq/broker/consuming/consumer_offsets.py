"""How far each group has consumed each queue, as its members have told; the table on disk.

A broker stores what it is told: also lower offsets, also for groups it does not know. A deleted topic has none.
Source: RocketMQ 4.9.8, ConsumerOffsetManager.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from pyromq.remoting.bodies import ConsumerOffsetTable, decode_body
from pyromq.store.json_file import JsonFile

_AT = "@"  # between topic and group; neither may contain it


class ConsumerOffsets:
    """The table topic and group -> queue id -> next offset. On disk only after `persist`."""

    def __init__(self, file: JsonFile) -> None:
        self._file = file
        self._table: dict[str, dict[int, int]] = {}
        self._dirty = False
        self._saved = 0

    def load(self) -> None:
        """Read the table from disk. Raises `StoreCorrupt` naming the file."""
        stored = self._file.read(partial(decode_body, ConsumerOffsetTable))
        if stored is not None:
            self._table = stored.offsets

    def persist(self) -> None:
        """Write the table to disk if it changed since the last time."""
        if (save := self.unsaved()) is not None:
            save()

    def unsaved(self) -> Callable[[], None] | None:
        """Return what writes the present table, to be called once, in any thread; None if nothing has changed."""
        if not self._dirty:
            return None
        self._dirty = False
        self._saved += 1
        return self._file.saving(msgspec.json.encode(self.table()), failed=self._lost, order=self._saved)

    def _lost(self) -> None:
        self._dirty = True

    def table(self) -> ConsumerOffsetTable:
        """Return everything, as request 43 answers."""
        return ConsumerOffsetTable(offsets=self._table)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset. Called for every pull that carries one."""
        self._dirty = True
        key = topic + _AT + group
        queues = self._table.get(key)
        if queues is None:
            self._table[key] = {queue_id: offset}
        else:
            queues[queue_id] = offset

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the stored offset; None if there is none."""
        return self._table.get(topic + _AT + group, {}).get(queue_id)

    def of_topic(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's stored offsets of a topic by queue id."""
        return dict(self._table.get(topic + _AT + group, {}))

    def topics_of(self, group: str) -> set[str]:
        """Return the topics that the group has offsets of."""
        return {topic for topic, _, of in self._split_keys() if of == group}

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have offsets of the topic."""
        return {group for of, _, group in self._split_keys() if of == topic}

    def remove_group(self, group: str) -> None:
        """Forget everything the group has consumed."""
        for topic in self.topics_of(group):
            del self._table[topic + _AT + group]
            self._dirty = True

    def remove_topic(self, topic: str) -> None:
        """Forget where all groups are in the topic."""
        for group in self.groups_of(topic):
            del self._table[topic + _AT + group]
            self._dirty = True

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Give `destination` the offsets of `source` for the topic, replacing its own. Nothing happens without any."""
        queues = self._table.get(topic + _AT + source)
        if queues is not None:
            self._table[topic + _AT + destination] = dict(queues)
            self._dirty = True

    def lowest_except(self, topic: str, groups: set[str]) -> dict[int, int]:
        """Return by queue id the lowest offset that any group but these has stored."""
        lowest: dict[int, int] = {}
        for of, _, group in self._split_keys():
            if of != topic or group in groups:
                continue
            for queue_id, offset in self._table[topic + _AT + group].items():
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return lowest

    def _split_keys(self) -> list[tuple[str, str, str]]:
        return [key.partition(_AT) for key in self._table]
