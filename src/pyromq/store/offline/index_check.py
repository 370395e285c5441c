"""Compares the key index with the log it was made from: entries, chains, and that every key can be found."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import TIMER_TOPIC
from pyromq.plural import counted
from pyromq.record import decode
from pyromq.store.index.index_file import ENTRY, HEADER, SLOT, index_file_bytes, key_of_entry
from pyromq.store.index.record_keys import key_hashes
from pyromq.store.offline.stopped_store import Cure, Finding, StoppedStore

_TOLD = 10  # findings of one file; the rest is counted


@dataclass(frozen=True, slots=True)
class _Entry:
    """One key of one record: in which file, at which byte."""

    path: Path
    position: int
    key_hash: int
    log_offset: int


class _File:
    """One index file. `slots` of its table are told from outside; 0: not known yet."""

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

    def guessed_slots(self, store: StoppedStore) -> int:
        """Return for how many slots the last record's entry is where it should be; 0 if it is not found."""
        last = store.record_at(self.end_log_offset)
        if last is None or self.next_entry <= 1:
            return 0
        try:
            message = decode(last[0].view, last[1])
        except StoreCorrupt:
            return 0
        hashes = key_hashes(message.topic, message.property_text)
        place = max((self.content.rfind(key_of_entry(each, self.end_log_offset)) for each in hashes), default=-1)
        slots, rest = divmod(place - HEADER.size - (self.next_entry - 1) * ENTRY.size, SLOT.size)
        return slots if place > 0 and slots > 0 and not rest else 0

    def check_header(self) -> None:
        """Raise `StoreCorrupt` where the header does not fit the file."""
        capacity = (len(self.content) - self.entries_at) // ENTRY.size
        spans = (self.begin_ms, self.end_ms), (self.begin_log_offset, self.end_log_offset)
        if not 0 <= self.used_slots <= self.slots or any(not 0 <= begin <= end for begin, end in spans):
            raise StoreCorrupt("its head is damaged")
        if self.next_entry > capacity:
            raise StoreCorrupt(f"the header says {self.next_entry} entries, the file has room for {capacity}")

    def entries(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield position, key hash, log offset, seconds and previous number, in order."""
        for number in range(1, self.next_entry):
            position = self.entries_at + number * ENTRY.size
            yield position, *ENTRY.unpack_from(self.content, position)


class IndexCheck:
    """Give it every record of the log in order, then ask for `findings`. `broken`: the files to be made again."""

    def __init__(self, store: StoppedStore) -> None:
        self.broken: set[Path] = set()
        self._store = store
        self._log_begin = store.log_begin
        self._files: list[_File] = []
        self._findings: list[Finding] = []
        self._untold: dict[Path, int] = {}
        folder = store.root / "index"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            self._open(path)
        self._find_sizes(store)
        self._chain_findings()
        self._entries = self._all_entries()
        self._unreadable = self._unreadable_ranges()
        self._next = next(self._entries, None)
        self._end = max((file.end_log_offset for file in self._files if file.next_entry > 1), default=-1)

    def _open(self, path: Path) -> None:
        if len(path.name) != 17 or not path.name.isdecimal() or not path.is_file():
            self._findings.append(Finding(path, None, "it is no index file", Cure.NOBODY))
            return
        if path.stat().st_size == 0:
            self._findings.append(Finding(path, None, "the file is empty", Cure.START))
            return
        try:
            self._files.append(_File(path))
        except StoreCorrupt as error:
            self._tell(path, None, str(error))

    def _find_sizes(self, store: StoppedStore) -> None:
        """Take the configured sizes if the files have them; else those that most files speak for."""
        config = store.config
        expected = index_file_bytes(config.index_slots, config.index_entries)
        sizes = Counter(len(file.content) for file in self._files)
        usual = max(sizes, key=lambda size: (sizes[size], size), default=expected)
        slots = config.index_slots
        if usual != expected:
            guesses = Counter(filter(None, (file.guessed_slots(store) for file in self._files)))
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
                self._tell(file.path, None, str(error))

    def _tell(self, path: Path, position: int | None, text: str) -> None:
        self.broken.add(path)
        told = self._untold.get(path, 0) + 1
        self._untold[path] = told
        if told <= _TOLD:
            self._findings.append(Finding(path, position, text, Cure.REPAIR))

    def _chain_findings(self) -> None:
        """Follow every file's entries as they were put: each names the one before it in its slot."""
        for file in self._files:
            newest: dict[int, int] = {}
            for number, (position, key_hash, _, seconds, previous) in enumerate(file.entries(), 1):
                slot = key_hash % file.slots
                if key_hash < 0 or seconds < 0 or previous != newest.get(slot, 0):
                    self._tell(file.path, position, f"entry {number} is damaged: its chain or its time is broken")
                newest[slot] = number
            for slot, number in newest.items():
                position = HEADER.size + slot * SLOT.size
                if SLOT.unpack_from(file.content, position)[0] != number:
                    self._tell(file.path, position, f"slot {slot} does not lead to its newest entry, {number}")

    def _all_entries(self) -> Iterator[_Entry]:
        """Yield the entries in order of their records; one that is out of order is told of."""
        before: _Entry | None = None
        for file in self._files:
            for position, key_hash, log_offset, _, _ in file.entries():
                entry = _Entry(file.path, position, key_hash, log_offset)
                if before is not None and before.log_offset > log_offset:
                    self._tell(before.path, before.position, f"an entry leads to log offset {before.log_offset}")
                elif before is not None:
                    yield before
                before = entry
        if before is not None:
            yield before

    def _unreadable_ranges(self) -> list[tuple[int, int]]:
        """Return between which log offsets, both included, files that cannot be read have entries."""
        ranges = []
        for path in self.broken - {file.path for file in self._files}:
            low = max((file.end_log_offset for file in self._files if file.path < path), default=-1)
            high = min((file.begin_log_offset for file in self._files if file.path > path), default=1 << 62)
            ranges.append((low, high))
        return ranges

    @property
    def end_ms(self) -> int:
        """Store time (ms) of the last record that readable files have; 0: none."""
        return max((file.end_ms for file in self._files), default=0)

    def is_split(self, path: Path) -> bool:
        """Whether only some of the keys of a file's last record are in that file."""
        file = next((file for file in self._files if file.path == path), None)
        last = self._store.record_at(file.end_log_offset) if file is not None else None
        if file is None or last is None:
            return False
        found = {key_hash for _, key_hash, log_offset, _, _ in file.entries() if log_offset == file.end_log_offset}
        try:
            message = decode(last[0].view, last[1])
        except StoreCorrupt:
            return True
        return found != set(key_hashes(message.topic, message.property_text))

    def take(self, message: StoredMessage) -> None:
        """Compare the entries of a sound record. Called for every one, in order of the log."""
        at = message.log_offset
        if self._next is None or at > self._end or message.sys_flag & SysFlag.ROLLBACK == SysFlag.ROLLBACK:
            return
        self._skip_before(at)
        found = []
        where = self._next
        while self._next is not None and self._next.log_offset == at:
            found.append(self._next.key_hash)
            self._next = next(self._entries, None)
        wanted = key_hashes(message.topic, message.property_text)
        if message.topic == TIMER_TOPIC:  # in the index of older stores, and of Java brokers
            return
        if set(found) != set(wanted) and not any(low <= at <= high for low, high in self._unreadable):
            path, position = (where.path, where.position) if where is not None else (self._files[-1].path, None)
            self._tell(
                path, position, f"the record at {at} has {len(set(wanted))} keys, the index {len(set(found))} of it"
            )

    def _skip_before(self, log_offset: int) -> None:
        while self._next is not None and self._next.log_offset < log_offset:
            entry = self._next
            if entry.log_offset >= self._log_begin or entry.log_offset < 0:
                self._tell(
                    entry.path, entry.position, f"an entry leads to log offset {entry.log_offset}: no record is there"
                )
            self._next = next(self._entries, None)

    def findings(self, log_end: int, *, crashed: bool) -> Iterator[Finding]:
        """Yield what is wrong. After a crash entries may lead behind the log's end."""
        while self._next is not None:
            entry = self._next
            if not (crashed and entry.log_offset >= log_end) and (
                entry.log_offset >= self._log_begin or entry.log_offset < 0
            ):
                self._tell(
                    entry.path, entry.position, f"an entry leads to log offset {entry.log_offset}: no record is there"
                )
            self._next = next(self._entries, None)
        yield from self._findings
        for path, count in self._untold.items():
            if count > _TOLD:
                yield Finding(
                    path, None, f"{counted(count - _TOLD, 'more entry is', 'more entries are')} wrong", Cure.REPAIR
                )
