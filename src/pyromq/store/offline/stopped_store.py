"""The files of a store that nobody has open, for reading only: which there are, how large they ought to be.

File sizes are told by the files themselves, so that folders of any settings, and of Java brokers, can be looked at.
Nothing here writes, and nothing trusts what it reads.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from pyromq.errors import StoreLocked, UsageError
from pyromq.record import BLANK_MAGIC_BYTES, MAGIC_AT, unpack_size_and_magic
from pyromq.store.config import StoreConfig
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.queue.consume_queue import ENTRY_BYTES, FILLER_SIZE, QueueEntry, is_unwritten_entry, unpack_entries
from pyromq.store.queue.queue_table import is_folder_name

_BLOCK_ENTRIES = 1024  # of a queue, read at once
_NAME_DIGITS = 20
_LEAST_LOG_FILE = 4096
_LARGEST_RECORD = 16 << 20  # as a frame; a file's blank end is shorter
_ROUND_SIZES = (4096, 1000)  # people set multiples of one of these


class Cure(Enum):
    """Who puts a finding right."""

    NOBODY = "harmless"
    START = "the next start mends it"
    REPAIR = "`pyromq store repair` mends it"
    AWAY = "move the folder `timers` away: the next start makes it again from the log"
    BACKUP = "only a backup has it"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: in which file, at which byte of it (None: the file as a whole)."""

    path: Path
    position: int | None
    text: str
    cure: Cure

    def __str__(self) -> str:
        at = "" if self.position is None else f" byte {self.position}"
        return f"{self.path}{at}: {self.text}; {self.cure.value}"


@dataclass(slots=True)
class StoppedFile:
    """One of a row of files: `base` is the offset of its first byte. `content` is empty for a missing file."""

    path: Path
    base: int
    content: mmap.mmap | bytes

    @property
    def view(self) -> memoryview:
        return memoryview(self.content)

    @property
    def data_end(self) -> int:
        """Position behind the last byte that is not zero, found without reading holes."""
        end = 0
        with self.path.open("rb") as file:
            position = 0
            while True:
                try:
                    start = os.lseek(file.fileno(), position, os.SEEK_DATA)
                except OSError:
                    return end
                position = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                for piece in range(start, position, 1 << 20):
                    filled = self.content[piece : min(piece + (1 << 20), position)].rstrip(b"\0")
                    end = piece + len(filled) if filled else end


class StoppedQueue:
    """The entries of one consume queue. `first` is its first queue offset, `end` the one behind its last entry."""

    def __init__(self, folder: Path, topic: str, queue_id: int) -> None:
        self.folder = folder
        self.topic = topic
        self.queue_id = queue_id
        self._files, self.foreign = _row(folder)
        self.file_bytes = _usual_size(path for _, path in self._files)
        self._block_start = -1
        self._block: list[tuple[int, int, int]] = []
        self.first = self._files[0][0] // ENTRY_BYTES if self._files else 0
        self.end = self._end()

    @property
    def log_end(self) -> int:
        """Log offset behind the last entry's record, or where a lost one may have been; 0 without entries."""
        last = self.entry(self.end - 1)
        if last is None:
            return 0
        return last.log_offset if last.size == FILLER_SIZE else last.log_offset + last.size

    def wrong_files(self) -> Iterator[tuple[Path, str]]:
        """Yield the files that are missing or of another size than the rest."""
        yield from _wrong_files(self.folder, self._files, self.file_bytes)

    def path_of(self, queue_offset: int) -> tuple[Path, int]:
        """Return the file of an entry, and its position there."""
        place = queue_offset * ENTRY_BYTES
        base = place - place % max(self.file_bytes, ENTRY_BYTES)
        return self.folder / f"{base:0{_NAME_DIGITS}}", place - base

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry; None where there is none. Quick when called for one after the other."""
        index = queue_offset - self._block_start
        if not 0 <= index < len(self._block):
            if not self.first <= queue_offset < self.end:
                return None
            self._block_start = queue_offset
            self._block = list(unpack_entries(self._read(queue_offset, _BLOCK_ENTRIES)))
            if not self._block:
                return None
            index = 0
        return QueueEntry._make(self._block[index]) if queue_offset < self.end else None

    def _read(self, queue_offset: int, count: int) -> bytes:
        path, position = self.path_of(queue_offset)
        size = min(count * ENTRY_BYTES, self.file_bytes - position)
        try:
            with path.open("rb") as file:
                content = os.pread(file.fileno(), size, position)
        except FileNotFoundError:
            return b""
        return content[: len(content) - len(content) % ENTRY_BYTES]

    def _end(self) -> int:
        """Entries fill the last file up to one place; damage may have left holes, so it is looked for from the end."""
        for base, path in reversed(self._files):
            content = path.read_bytes()
            for position in range(len(content) - len(content) % ENTRY_BYTES - ENTRY_BYTES, -1, -ENTRY_BYTES):
                if not is_unwritten_entry(content, position):
                    return (base + position) // ENTRY_BYTES + 1
        return self.first


class StoppedStore:
    """What lies in a store's folder. Raises `UsageError` where that is no store."""

    def __init__(self, config: StoreConfig) -> None:
        self.root = config.root
        self.log_folder = config.log_folder
        self.foreign: list[Path] = []
        self._log_rows, foreign = _row(self.log_folder)
        self.foreign += foreign
        if not self._log_rows and not (self.root / "consumequeue").is_dir():
            raise UsageError(f"{self.root} is no data folder of a broker: there is no {self.log_folder.name} in it")
        self.log_files = [self._mapped(base, path) for base, path in self._log_rows]
        self.segment_bytes = self._file_size(config.segment_bytes)
        self.config = replace(config, segment_bytes=self.segment_bytes)
        abort = self.root / "abort"
        self.crashed = abort.exists()
        # As `Directory` sees it: without a power cut everything that was written is there.
        words = abort.read_bytes().split() if self.crashed else []
        same_boot = len(words) > 1 and words[1] == LOCAL_DISK.boot_id().encode()
        self.power_cut = self.crashed and (not same_boot or b"unflushed" in words)

    @property
    def log_begin(self) -> int:
        return self.log_files[0].base if self.log_files else 0

    def log_path(self, base: int) -> Path:
        """Return where the log file is, or would be, that begins at `base`."""
        return self.log_folder / f"{base:0{_NAME_DIGITS}}"

    def wrong_log_files(self) -> Iterator[tuple[Path, str]]:
        """Yield log files that are missing or of another size."""
        rows = self._log_rows
        if rows and rows[-1][1].stat().st_size == 0:  # a crash came before it got its size
            rows = rows[:-1]
        yield from _wrong_files(self.log_folder, rows, self.segment_bytes)

    def queues(self) -> Iterator[StoppedQueue]:
        """Yield the consume queues, by topic and id."""
        for folder in sorted((self.root / "consumequeue").glob("*/*")):
            if folder.is_dir() and folder.name.isdecimal() and is_folder_name(folder.parent.name):
                yield StoppedQueue(folder, folder.parent.name, int(folder.name))

    def record_at(self, log_offset: int) -> tuple[StoppedFile, int] | None:
        """Return the file that holds a log offset, and the position there; None if there is none."""
        if not self.log_files or log_offset < self.log_begin:
            return None
        for file in (self.log_files[index] for index in self._near(log_offset)):
            if file.base <= log_offset < file.base + self.segment_bytes:
                return file, log_offset - file.base
        return None

    def _file_size(self, configured: int) -> int:
        """Return the size that log files ought to have. A single one tells it unless it was cut."""
        usual = _usual_size(path for _, path in self._log_rows)
        filled = [file for file in self.log_files if file.content]
        if len(filled) != 1 or usual >= configured:
            return usual or configured
        return configured if self._is_cut(filled[0], configured) else usual

    def _is_cut(self, file: StoppedFile, configured: int) -> bool:
        """Whether the only log file was longer: nobody sets its size, or queues know records behind its end."""
        size = len(file.content)
        blank_at = file.content.rfind(BLANK_MAGIC_BYTES, max(size - _LARGEST_RECORD, 0)) - MAGIC_AT
        if blank_at >= 0 and unpack_size_and_magic(file.content, blank_at)[0] == size - blank_at:
            return False  # the file was full
        if size < _LEAST_LOG_FILE or all(size % unit for unit in _ROUND_SIZES):
            return True
        return any(file.base + size < queue.log_end <= file.base + configured for queue in self.queues())

    def _near(self, log_offset: int) -> Iterable[int]:
        index = (log_offset - self.log_begin) // self.segment_bytes
        return range(min(index, len(self.log_files) - 1), -1, -1)  # missing files shift those behind them

    def _mapped(self, base: int, path: Path) -> StoppedFile:
        with path.open("rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            content = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return StoppedFile(path, base, content)


def _row(folder: Path) -> tuple[list[tuple[int, Path]], list[Path]]:
    """Return the files that are named by an offset, in order, and the others."""
    if not folder.is_dir():
        return [], []
    paths = sorted(folder.iterdir())
    named = [path for path in paths if len(path.name) == _NAME_DIGITS and path.name.isdecimal() and path.is_file()]
    return [(int(path.name), path) for path in named], [path for path in paths if path not in named]


def _usual_size(paths: Iterable[Path]) -> int:
    return usual(path.stat().st_size for path in paths)


def usual(sizes: Iterable[int]) -> int:
    """Return the size that is there most often, of several the largest: what is wrong is usually too short."""
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _wrong_files(folder: Path, row: list[tuple[int, Path]], file_bytes: int) -> Iterator[tuple[Path, str]]:
    expected = row[0][0] if row else 0
    for base, path in row:
        while expected < base and file_bytes:
            yield folder / f"{expected:0{_NAME_DIGITS}}", "the file is missing"
            expected += file_bytes
        size = path.stat().st_size
        if size != file_bytes:
            yield path, f"the file has {size} bytes, not {file_bytes}"
        expected = base + file_bytes


def check_stopped(root: Path) -> None:
    """Raise `StoreLocked` if a broker has the folder open. Nothing is written."""
    try:
        descriptor = LOCAL_DISK.open(root / "lock")
    except OSError:  # nobody ever had it, or it is for reading only
        return
    try:
        LOCAL_DISK.lock(descriptor)
    except OSError as error:
        raise StoreLocked(f"data folder {root} is in use by a broker; stop that first") from error
    finally:
        LOCAL_DISK.close(descriptor)
