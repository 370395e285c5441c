"""Compares the key index of a stopped store with the log: entries, chains, and whether every key is found."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import TIMER_TOPIC
from pyromq.store.index.index_file import ENTRY, HEADER, SLOT, index_file_bytes, key_hashes, key_of_entry
from pyromq.store.offline.stopped_store import Cure, StoppedStore, StoreFault


class _File:
    """One index file, mapped for reading. `slots` is the number of slots in its hash table; 0 if not known yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self.content) < HEADER.size:
            raise StoreCorrupt(f"the file has {len(self.content)} bytes")
        header = HEADER.unpack_from(self.content)
        self.begin_ms, self.end_ms, self.begin_log_offset, self.end_log_offset, self.used_slots, next_entry = header
        self.next_entry: int = max(next_entry, 1)
        self.slots = 0

    @property
    def entries_at(self) -> int:
        return HEADER.size + self.slots * SLOT.size

    def derived_slots(self, store: StoppedStore) -> int:
        """Return the number of slots, derived from the last record's entry; 0 if the entry is missing."""
        last = store.message_at(self.end_log_offset)
        if last is None or self.next_entry <= 1:
            return 0
        hashes = key_hashes(last.topic, last.property_text)
        place = max((self.content.rfind(key_of_entry(each, self.end_log_offset)) for each in hashes), default=-1)
        slots, rest = divmod(place - HEADER.size - (self.next_entry - 1) * ENTRY.size, SLOT.size)
        return slots if place > 0 and slots > 0 and not rest else 0

    def check_header(self) -> None:
        """Raise `StoreCorrupt` if the header's values are impossible in a file of this size."""
        capacity = (len(self.content) - self.entries_at) // ENTRY.size
        spans = (self.begin_ms, self.end_ms), (self.begin_log_offset, self.end_log_offset)
        if not 0 <= self.used_slots <= self.slots or any(not 0 <= begin <= end for begin, end in spans):
            raise StoreCorrupt("its head is damaged")
        if self.next_entry > capacity:
            raise StoreCorrupt(f"the header says {self.next_entry} entries, the file has room for {capacity}")

    def entries(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield file position, key hash, log offset, seconds and previous entry's number of each entry in order."""
        for number in range(1, self.next_entry):
            position = self.entries_at + number * ENTRY.size
            yield position, *ENTRY.unpack_from(self.content, position)


class IndexCheck:
    """Checks the key index: `take` gets every intact record of the log in order, then `findings` yields the faults.

    `broken` maps a file to its first fault.
    """

    def __init__(self, store: StoppedStore) -> None:
        self.broken: dict[Path, StoreFault] = {}
        self._harmless: list[StoreFault] = []
        self._store = store
        self._files: list[_File] = []
        folder = store.root / "index"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            self._open(path)
        self._find_sizes(store)
        for file in self._files:
            self._check_chains(file)
        self._entries = self._all_entries()
        self._next = next(self._entries, None)
        self._unreadable = self._unreadable_ranges()
        self._end = max((file.end_log_offset for file in self._files if file.next_entry > 1), default=-1)

    def _open(self, path: Path) -> None:
        if len(path.name) != 17 or not path.name.isdecimal() or not path.is_file():
            self._harmless.append(StoreFault(path, None, "it is not an index file", Cure.NOBODY))
        elif path.stat().st_size == 0:
            self._harmless.append(StoreFault(path, None, "the file is empty", Cure.START))
        else:
            try:
                self._files.append(_File(path))
            except StoreCorrupt as error:
                self._note(path, None, str(error))

    def _find_sizes(self, store: StoppedStore) -> None:
        """Set the number of slots of each file. Note files of another size than most files as broken.

        The number is the configured one if most files have the configured size. Otherwise the number is derived from
        the files.
        """
        config = store.config
        expected = index_file_bytes(config.index_slots, config.index_entries)
        sizes = Counter(len(file.content) for file in self._files)
        usual = max(sizes, key=lambda size: (sizes[size], size), default=expected)
        slots = config.index_slots
        if usual != expected:
            guesses = Counter(filter(None, (file.derived_slots(store) for file in self._files)))
            slots = max(guesses, key=lambda guess: guesses[guess], default=0)
        for file in list(self._files):
            file.slots = slots
            try:
                if len(file.content) != usual:
                    raise StoreCorrupt(f"the file has {len(file.content)} bytes, the others have {usual}")
                if not slots:
                    raise StoreCorrupt(
                        f"the file has {usual} bytes, {expected} are configured (maxHashSlotNum, maxIndexNum)"
                    )
                file.check_header()
            except StoreCorrupt as error:
                self._files.remove(file)
                self._note(file.path, None, str(error))

    def _note(self, path: Path, position: int | None, text: str) -> None:
        self.broken.setdefault(path, StoreFault(path, position, text, Cure.REPAIR))

    def _check_chains(self, file: _File) -> None:
        """Note a fault if an entry does not name the previous entry of its slot.

        Note a fault also if a slot does not name its newest entry.
        """
        newest: dict[int, int] = {}
        for number, (position, key_hash, _, seconds, previous) in enumerate(file.entries(), 1):
            slot = key_hash % file.slots
            if key_hash < 0 or seconds < 0 or previous != newest.get(slot, 0):
                self._note(file.path, position, f"entry {number} is damaged: its chain or its time is broken")
            newest[slot] = number
        for slot, number in newest.items():
            position = HEADER.size + slot * SLOT.size
            if SLOT.unpack_from(file.content, position)[0] != number:
                self._note(file.path, position, f"slot {slot} does not lead to its newest entry, {number}")

    def _all_entries(self) -> Iterator[tuple[Path, int, int, int]]:
        """Yield file, file position, key hash and log offset of all entries, in order of their records."""
        held: tuple[Path, int, int, int] | None = None
        for file in self._files:
            for position, key_hash, log_offset, _, _ in file.entries():
                if held is not None and held[3] > log_offset:
                    self._note(*held[:2], f"an entry leads to log offset {held[3]}, the next one to {log_offset}")
                elif held is not None:
                    yield held
                held = file.path, position, key_hash, log_offset
        if held is not None:
            yield held

    def _unreadable_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of log offsets, both ends included, whose entries are in files that cannot be read."""
        ranges = []
        for path in self.broken.keys() - {file.path for file in self._files}:
            low = max((file.end_log_offset for file in self._files if file.path < path), default=-1)
            high = min((file.begin_log_offset for file in self._files if file.path > path), default=1 << 62)
            ranges.append((low, high))
        return ranges

    @property
    def end_ms(self) -> int:
        """Store time (ms) of the last record in readable index files; 0 without such a file."""
        return max((file.end_ms for file in self._files), default=0)

    def take(self, message: StoredMessage) -> None:
        """Compare an intact record's keys with its index entries, and note a fault if they differ."""
        at = message.log_offset
        if self._next is None or at > self._end or message.sys_flag & SysFlag.ROLLBACK == SysFlag.ROLLBACK:
            return
        self._skip_before(at)
        found: set[int] = set()
        path, position = self._next[:2] if self._next is not None else (self._files[-1].path, None)
        while self._next is not None and self._next[3] == at:
            found.add(self._next[2])
            self._next = next(self._entries, None)
        if message.topic == TIMER_TOPIC:  # older brokers and Java brokers indexed scheduled messages
            return
        wanted = set(key_hashes(message.topic, message.property_text))
        if at == self._end and found < wanted:
            return  # a killed process may have indexed only some keys: the next start adds the other keys
        if found != wanted and not any(low <= at <= high for low, high in self._unreadable):
            self._note(path, position, f"the record at {at} has {len(wanted)} keys, the index {len(found)} of it")

    def _skip_before(self, log_offset: int) -> None:
        """Note each entry before a log offset that leads to no record, unless the record has expired."""
        while self._next is not None and self._next[3] < log_offset:
            path, position, _, at = self._next
            if not 0 <= at < self._store.log_begin:
                self._note(path, position, f"an entry leads to log offset {at}: no record is there")
            self._next = next(self._entries, None)

    def findings(self, log_end: int) -> Iterator[StoreFault]:
        """Yield the faults of all index files. After a crash, entries may lead beyond the log's end `log_end`."""
        self._skip_before(log_end if self._store.crashed else 1 << 63)
        yield from (*self._harmless, *self.broken.values())
