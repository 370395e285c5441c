"""The committed offsets of each consumer group by queue, and their table on disk.

Any offset is stored: also one lower than before, and offsets of unknown groups. A deleted topic has no offsets.
Source: RocketMQ 4.9.8, ConsumerOffsetManager.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

import msgspec

from pyromq.broker.limits import DEFAULT_LIMITS
from pyromq.broker.replicated_table import ChangedKeys
from pyromq.errors import LimitReached
from pyromq.names import SYSTEM_GROUP_PREFIX
from pyromq.remoting.bodies import ConsumerOffsetTable, decode_body
from pyromq.store.json_file import JsonFile
from pyromq.store.table_file import release_gil

_AT = "@"  # separates topic and group in a key of the table; names of topics and groups never contain it
_PART = 500  # keys encoded without a pause: takes about 300 us, for which the event loop may have to wait


class ConsumerOffsets:
    """The table (topic, group) -> queue id -> next queue offset to consume.

    `most` limits the queues, over all groups.
    """

    def __init__(self, file: JsonFile, *, most: int = DEFAULT_LIMITS.offsets) -> None:
        self._file = file
        self._most = most
        self._table: dict[str, dict[int, int]] = {}
        self._count = 0  # stored offsets: one for each queue of each group
        self._groups: dict[str, dict[str, None]] = {}  # topic -> its groups; `_topics`: group -> its topics
        self._topics: dict[str, dict[str, None]] = {}
        self._dirty = False
        self._saved = 0
        self.changed: ChangedKeys | None = None  # counts changes for the replicas of a set; None outside of sets
        # Called with group, topic, queue id and offset after each change of a watched `topic@group`; a queue id of None
        # means all of its queues, whose offsets were removed.
        self.on_change: Callable[[str, str, int | None, int], None] = lambda group, topic, queue_id, offset: None
        self.watched: set[str] = set()
        # Called before the removal of a watched `topic@group` is written to disk, in the thread that writes.
        self.flush_removed: Callable[[], None] = lambda: None
        self._has_removed = False  # True if the removal of a watched `topic@group` may not be on disk

    def load(self) -> None:
        """Read the table from disk; a missing file is an empty table. Raises `StoreCorrupt` naming the file."""
        stored = self._file.read(partial(decode_body, ConsumerOffsetTable))
        if stored is not None:
            for key, queues in stored.offsets.items():
                topic, _, group = key.partition(_AT)
                self._enter(group, topic, queues)

    def persist(self) -> None:
        """Write the table to disk if an offset changed since the last write. Blocks."""
        if (save := self.unsaved()) is not None:
            save()

    def unsaved(self) -> Callable[[], None] | None:
        """Return a function that writes the table to disk, once, in any thread; None if no offset has changed.

        Offsets of the broker's internal groups are written as of this call, since they depend on each other. Offsets of
        clients' groups are written as of the moment when the function runs.
        """
        if not self._dirty:
            return None
        self._dirty = False
        has_removed, self._has_removed = self._has_removed, False
        self._saved += 1
        own = {
            topic + _AT + group: dict(self._table[topic + _AT + group])
            for group, topics in self._topics.items()
            if group.startswith(SYSTEM_GROUP_PREFIX)
            for topic in topics
        }
        content = partial(self._encoded, own, has_removed=has_removed)
        return self._file.saving(content, failed=self._lost, order=self._saved)

    def _encoded(self, own: dict[str, dict[int, int]], *, has_removed: bool) -> bytes:
        """Return the file's content as JSON.

        Runs in another thread: each read of a shared dict is one atomic step.
        """
        if has_removed:
            self.flush_removed()
        keys = iter(list(self._table))
        parts = []
        while names := list(islice(keys, _PART)):
            queues = {key: own.get(key) or dict(self._table.get(key, {})) for key in names}
            parts.append(msgspec.json.encode({key: each for key, each in queues.items() if each})[1:-1])
            release_gil()
        return b'{"offsetTable":{' + b",".join(part for part in parts if part) + b"}}"

    def _lost(self) -> None:
        self._dirty = self._has_removed = True

    def table(self) -> ConsumerOffsetTable:
        """Return a copy of all offsets, in the form of the reply to request 43."""
        return ConsumerOffsetTable(offsets={key: dict(queues) for key, queues in self._table.items()})

    def keys(self) -> list[str]:
        """Return the table's keys (`topic@group`, as in request 43), each an argument for `queues_at`."""
        return list(self._table)

    def queues_at(self, key: str) -> dict[int, int]:
        return dict(self._table.get(key, {}))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Store an offset; return False if the table is full. Called for every pull that carries a committed offset."""
        key = topic + _AT + group
        queues = self._table.get(key)
        if queues is None or queue_id not in queues:
            if not self._has_room(group):
                return False
            self._count += 1
            if queues is None:
                queues = self._enter(group, topic, {})
        self._dirty = True
        queues[queue_id] = offset
        if self.changed is not None:
            self.changed.note(key)
        if key in self.watched:
            self.on_change(group, topic, queue_id, offset)
        return True

    def watch(self, group: str, topic: str) -> None:
        """Let `on_change` be called for the offsets of a group in a topic."""
        self.watched.add(topic + _AT + group)

    def _has_room(self, group: str) -> bool:
        return self._count < self._most or group.startswith(SYSTEM_GROUP_PREFIX)

    def too_many(self, group: str) -> LimitReached:
        """Return the error for an offset of a group that was refused because the table is full (`maxOffsets`)."""
        text = f"no offset of group {group} is stored, this broker has {self._count}: delete groups or topics"
        return LimitReached("maxOffsets", self._most, text)

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's stored offset of a queue; None if the group has none."""
        return self._table.get(topic + _AT + group, {}).get(queue_id)

    def of_topic(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's stored offsets in a topic: queue id -> offset."""
        return self.queues_at(topic + _AT + group)

    def topics_of(self, group: str) -> set[str]:
        """Return the topics in which the group has stored offsets."""
        return set(self._topics.get(group, ()))

    def topics_by_group(self) -> dict[str, set[str]]:
        """Return for each group the topics in which the group has stored offsets."""
        return {group: set(topics) for group, topics in self._topics.items()}

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have stored offsets in the topic."""
        return set(self._groups.get(topic, ()))

    def remove_group(self, group: str) -> ConsumerOffsetTable:
        """Remove all offsets of a group; return them."""
        return ConsumerOffsetTable({topic + _AT + group: self._remove(group, topic) for topic in self.topics_of(group)})

    def remove_topic(self, topic: str) -> ConsumerOffsetTable:
        """Remove the offsets of all groups in the topic; return them."""
        return ConsumerOffsetTable({topic + _AT + group: self._remove(group, topic) for group in self.groups_of(topic)})

    def restore(self, removed: ConsumerOffsetTable) -> None:
        """Store removed offsets again. An offset that was stored since is kept."""
        for key, queues in removed.offsets.items():
            topic, _, group = key.partition(_AT)
            for queue_id in queues.keys() - self._table.get(key, {}).keys():
                self.commit(group, topic, queue_id, queues[queue_id])

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Replace the offsets of group `destination` in a topic by the offsets of group `source`, if there are any.

        Raises `LimitReached` if the table is full.
        """
        queues = self._table.get(topic + _AT + source)
        if queues is not None:
            if not self._has_room(destination):
                raise self.too_many(destination)
            self._remove(destination, topic)
            self._enter(destination, topic, dict(queues))
            self._note(topic + _AT + destination)

    def lower(self, end_of: Callable[[str, int], int]) -> None:
        """Lower offsets beyond the end of their queue to that end, which `end_of(topic, queue id)` returns.

        A new master's queues may be shorter than the former master's. New messages must not be skipped.
        """
        for key, queues in self._table.items():
            topic = key.partition(_AT)[0]
            for queue_id, offset in queues.items():
                if offset > (end := end_of(topic, queue_id)):
                    queues[queue_id] = end
                    self._note(key)

    def lowest_except(self, topic: str, groups: set[str]) -> dict[int, int]:
        """Return for each queue id of a topic the lowest offset of all groups except `groups`."""
        lowest: dict[int, int] = {}
        for group in self.groups_of(topic) - groups:
            for queue_id, offset in self._table[topic + _AT + group].items():
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return lowest

    # -- replicas of a set

    def encode_changed(self, since: int | None) -> bytes:
        """Return the offsets of clients' groups that have changed since a version of `changed`, for `adopt`.

        None: all offsets.
        """
        keys = self.keys() if since is None or self.changed is None else self.changed.since(since)
        offsets = {key: self.queues_at(key) for key in keys if not _is_internal(key)}
        return msgspec.json.encode(_ChangedOffsets(offsets, since is None))

    def adopt(self, data: bytes, end_of: Callable[[str, int], int]) -> None:
        """Enter changed offsets of a master. An offset beyond the queue's end, `end_of(topic, queue id)`, is lowered.

        The progress of internal groups is kept, because this replica derives it from the log. Raises
        `msgspec.DecodeError`.
        """
        changes = msgspec.json.decode(data, type=_ChangedOffsets)
        stale = [key for key in self._table if key not in changes.offsets and not _is_internal(key)]
        for key in stale if changes.is_all else ():
            self._replace(key, {})
        for key, queues in changes.offsets.items():
            topic = key.partition(_AT)[0]
            self._replace(key, {queue_id: min(offset, end_of(topic, queue_id)) for queue_id, offset in queues.items()})

    def _replace(self, key: str, queues: dict[int, int]) -> None:
        topic, _, group = key.partition(_AT)
        self._remove(group, topic)
        if queues:
            self._enter(group, topic, queues)
            self._note(key)

    def _note(self, key: str) -> None:
        self._dirty = True
        if self.changed is not None:
            self.changed.note(key)

    def _enter(self, group: str, topic: str, queues: dict[int, int]) -> dict[int, int]:
        self._table[topic + _AT + group] = queues
        self._groups.setdefault(topic, {})[group] = None
        self._topics.setdefault(group, {})[topic] = None
        self._count += len(queues)
        return queues

    def _remove(self, group: str, topic: str) -> dict[int, int]:
        queues = self._table.pop(topic + _AT + group, None)
        if queues is None:
            return {}
        self._count -= len(queues)
        self._note(topic + _AT + group)
        for table, key, value in ((self._groups, topic, group), (self._topics, group, topic)):
            table[key].pop(value, None)
            if not table[key]:
                del table[key]
        if topic + _AT + group in self.watched:
            self.watched.discard(topic + _AT + group)
            self._has_removed = True
            self.on_change(group, topic, None, 0)
        return queues


class _ChangedOffsets(msgspec.Struct, frozen=True):
    """Changed offsets by `topic@group`; no offsets: they were removed. `is_all`: other groups have no offsets."""

    offsets: dict[str, dict[int, int]]
    is_all: bool


def _is_internal(key: str) -> bool:
    return key.partition(_AT)[2].startswith(SYSTEM_GROUP_PREFIX)
