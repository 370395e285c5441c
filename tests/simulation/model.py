"""What a store must hold: everything appended, in order, and how much of it no crash may take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

from pyromq.errors import MessageRefused, StoreNotWritable
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import TIMER_TOPIC
from pyromq.record import decode
from pyromq.slow_work import run_blocking
from pyromq.store.index.index_file import key_hashes
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.consume_queue import FILLER_SIZE

EVER = (0, (1 << 63) - 1)
KEYS_LOOKED_UP = 12
FIELDS = ("topic", "queue_id", "queue_offset", "log_offset", "store_ms", "sys_flag", "property_text", "stored_body")


class Wrong(AssertionError):
    """The store does not hold what it must."""


def require(truth: object, text: str) -> None:
    if not truth:
        raise Wrong(text)


class Append:
    """One message that was to be appended; `done` when the call returned."""

    def __init__(self, message: StoredMessage) -> None:
        self.message = message
        self.done = False
        self.is_deleted = False  # its topic was: a crash may bring it back, and the next one take it again

    @property
    def end(self) -> int:
        return self.message.log_offset + self.message.size

    @property
    def queue(self) -> tuple[str, int]:
        return self.message.topic, self.message.queue_id

    @property
    def is_queued(self) -> bool:
        return not self.message.sys_flag & SysFlag.HALF


class Model:
    """`log` is in order; `confirmed_to` is the log offset up to which a power cut may take nothing."""

    def __init__(self) -> None:
        self.log: list[Append] = []
        self.confirmed_to = 0
        self.dropped_to = 0
        self.dropped: list[Append] = []  # expired
        self.next_offsets: dict[tuple[str, int], int] = defaultdict(int)
        self.tables: dict[str, tuple[bytes | None, bytes | None]] = {}  # name: content saved, content on its way

    # -- while it lives

    def watch(self, store: MessageStore) -> None:
        """Note every append of a store."""
        append, append_batch, delete = store.append, store.append_batch, store.delete_topic

        def noted_append(message: StoredMessage) -> None:
            self._noted([message], lambda: append(message))

        def noted_batch(messages: list[StoredMessage]) -> None:
            self._noted(messages, lambda: append_batch(messages))

        def noted_delete(topic: str) -> None:
            for each in (*self.dropped, *self.log):
                if each.message.topic == topic:
                    each.is_deleted = True
            for queue in [queue for queue in self.next_offsets if queue[0] == topic]:
                del self.next_offsets[queue]
            delete(topic)

        store.append, store.append_batch, store.delete_topic = noted_append, noted_batch, noted_delete  # type: ignore[method-assign]

    def _noted(self, messages: list[StoredMessage], append: Callable[[], None]) -> None:
        appends = [Append(message) for message in messages]
        for each in messages:
            each.log_offset = -1
        before = len(self.log)
        self.log += appends
        try:
            append()
        except (MessageRefused, StoreNotWritable):
            del self.log[before:]
            raise
        for each in appends:
            each.done = True
            if each.is_queued:
                offset = each.message.queue_offset
                require(offset == self.next_offsets[each.queue], f"queue {each.queue} gave offset {offset} out of turn")
                self.next_offsets[each.queue] = offset + 1

    def watch_table(self, file: JsonFile) -> None:
        save, name = file.save, str(file.path)

        def noted_save(content: bytes, *, order: int = 0) -> None:
            self.tables[name] = (self.tables.get(name, (None, None))[0], content)
            save(content, order=order)
            self.tables[name] = (content, content)

        file.save = noted_save  # type: ignore[method-assign]

    # -- after a crash

    def check(self, store: MessageStore, random: Random, *, power_loss: bool) -> None:
        """Compare with a store just opened, and go on with what it has."""
        self._check_log(store, power_loss=power_loss)
        self._check_queues(store)
        self._check_keys(store, random)

    def check_table(self, file: JsonFile, *, power_loss: bool) -> None:
        name = str(file.path)
        if name in self.tables:
            found = file.load()
            require(found in self.tables[name], f"table {name} holds {found!r}, saved was {self.tables[name]}")
            # What a killed process was saving may be seen, and still go with a power cut.
            self.tables[name] = (found if power_loss else self.tables[name][0], found)

    def _check_log(self, store: MessageStore, *, power_loss: bool) -> None:
        begin, end = store.min_log_offset, store.max_log_offset
        require(begin <= self.dropped_to, f"the log begins at {begin}, expired is what lies before {self.dropped_to}")
        expected = [each for each in self.log if each.message.log_offset >= begin or not each.done]
        count = 0
        for _, record in store.records_from(begin):
            found = decode(record, check_crc=True)
            require(count < len(expected), f"record at {found.log_offset} was never sent")
            self._same(found, expected[count].message)
            count += 1
        for each in expected[count:]:
            must = each.done and (each.end <= self.confirmed_to or not power_loss)
            require(
                not (must and each.message.log_offset >= 0),
                f"record at {each.message.log_offset} is lost: the log ends at {end},"
                f" confirmed up to {self.confirmed_to}",
            )
        kept = expected[:count]
        for each in kept:
            each.done = True
        self.dropped += [each for each in self.log if each.done and 0 <= each.message.log_offset < begin]
        self.log = kept
        self.dropped_to = begin
        self.confirmed_to = min(self.confirmed_to, end)

    @staticmethod
    def _same(found: StoredMessage, sent: StoredMessage) -> None:
        for field in FIELDS:
            there, wanted = getattr(found, field), getattr(sent, field)
            require(there == wanted, f"record at {found.log_offset}: {field} is {there!r}, sent was {wanted!r}")

    def _check_queues(self, store: MessageStore) -> None:
        alive: dict[tuple[str, int], dict[int, Append]] = defaultdict(dict)
        deleted: dict[int, Append] = {}
        for each in self.log:
            if each.is_deleted:
                deleted[each.message.log_offset] = each
            elif each.is_queued:
                alive[each.queue][each.message.queue_offset] = each
        expired = {
            each.queue: each.message.queue_offset + 1 for each in self.dropped if each.is_queued and not each.is_deleted
        }
        self.next_offsets = defaultdict(int)
        for topic in store.topics():
            for queue_id in store.queue_ids(topic):
                queue = (topic, queue_id)
                self.next_offsets[queue] = self._check_queue(store, queue, alive.pop(queue, {}), deleted)
        require(not alive, f"queues are lost: {list(alive)}")
        for queue, offset in expired.items():
            require(self.next_offsets[queue] >= offset, f"{queue} gives offsets again, it had {offset} before")

    def _check_queue(
        self, store: MessageStore, queue: tuple[str, int], alive: dict[int, Append], deleted: dict[int, Append]
    ) -> int:
        """Return the next offset."""
        low, high = store.min_offset(*queue), store.max_offset(*queue)
        entries = store.entries(*queue, low, high - low)
        require(len(entries) == high - low, f"{queue} has {len(entries)} entries from {low} to {high}")
        for offset, entry in enumerate(entries, low):
            each = alive.pop(offset, None)
            if each is None and entry.size == FILLER_SIZE:
                continue  # its log offset is 0, where a deleted message may be
            each = each or deleted.get(entry.log_offset)
            if each is None and entry.log_offset < store.min_log_offset:
                continue  # expired
            require(each is not None, f"{queue} {offset} leads to {entry}, where nothing was sent to it")
            assert each is not None
            wanted = (each.message.log_offset, each.message.size)
            require(entry[:2] == wanted, f"{queue} {offset} leads to {entry}, the message is at {wanted}")
            require(entry.tags_code == store._dispatcher.tags_code(each.message), f"{queue} {offset} has other tags")
            require(each.queue == queue and each.message.queue_offset == offset, f"{queue} {offset} leads elsewhere")
        require(not alive, f"{queue} has offsets from {low} to {high}, not {list(alive)}")
        return high

    def _check_keys(self, store: MessageStore, random: Random) -> None:
        """Look up some keys: every message that has one, each once."""
        by_key: dict[tuple[str, str], set[int]] = defaultdict(set)
        for each in self.log:
            if each.message.topic == TIMER_TOPIC:
                continue  # parked ones are not in the index
            for key in {each.message.properties.get("UNIQ_KEY"), *each.message.keys} - {"", None}:
                by_key[each.message.topic, key].add(each.message.log_offset)
        store.follow_index()
        for topic, key in random.sample(sorted(by_key), min(KEYS_LOOKED_UP, len(by_key))):
            found = run_blocking(store.search_by_key(topic, key, 10_000, *EVER)).log_offsets
            mine = [at for at in found if at in by_key[topic, key]]
            missing = by_key[topic, key] - set(mine)
            require(not missing, f"key {key!r} of {topic} does not lead to {sorted(missing)}, only to {found}")
            require(len(mine) == len(set(mine)), f"key {key!r} of {topic} leads twice to one of {found}")
            for at in set(found) - set(mine):
                record = store.message_at(at)
                require(record is not None, f"key {key!r} leads to {at}, where no record is")
                assert record is not None
                [wanted] = key_hashes(topic, f"KEYS\x01{key}")
                require(wanted in key_hashes(record.topic, record.property_text), f"key {key!r} leads to {at}")
