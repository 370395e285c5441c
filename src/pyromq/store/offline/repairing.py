"""Puts a stopped store in order again: makes again what the log still tells, and keeps every sound record where it is.

What is damaged in the log is filled so that records behind it keep their offsets: at a file's end by a blank record,
elsewhere by one that says so, which is in no queue. Bytes that are written over are kept in the folder `damaged`.
The entry of a lost message stays in its queue, and leads nowhere: consumers go on behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage, SysFlag
from pyromq.plural import counted
from pyromq.record import FIXED_SIZE, blank, decode, encode
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.config import StoreConfig
from pyromq.store.disk import OWNER_ONLY, OWNER_ONLY_FOLDER
from pyromq.store.offline.checking import Checking, Report
from pyromq.store.offline.log_walk import Damage, LogWalk
from pyromq.store.offline.stopped_store import StoppedStore
from pyromq.store.queue.consume_queue import ENTRY_BYTES, FILLER_SIZE, pack_entry
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.queue_dispatcher import QueueDispatcher

_TOPIC = "damaged"  # of records that stand for damage
_KEPT = "damaged"  # folder
_LEAST = FIXED_SIZE + 1  # bytes of a record with a topic of one character
_MOST = 4 << 20  # of one that stands for damage: brokers read a record into memory


class Repairing:
    """One repair of a store that the caller has locked. `on_act` is told each thing that is done, before it is."""

    def __init__(
        self,
        config: StoreConfig,
        on_act: Callable[[str], None],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._config = config
        self._on_act = on_act
        self._on_progress = on_progress
        self._touched: set[Path] = set()

    def run(self) -> Report:
        """Mend what can be mended; return what a check finds afterwards. Raises `OSError`."""
        store = StoppedStore(self._config)
        if self._begin_again(store) or self._restore_sizes(store):
            self._sync()
        checking = Checking(self._config, self._on_progress)
        report = checking.run()
        for damage in report.damages:
            self._fill(checking, damage)
        if report.damages:
            self._sync()
        self._close_gaps(checking)
        self._rebuild(checking)
        self._drop_index(checking)
        self._drop_checkpoint(report)
        self._sync()
        return Checking(self._config, self._on_progress).run()

    # -- the log

    def _begin_again(self, store: StoppedStore) -> bool:
        """Where nothing is left of the log, let it go on behind what the queues know: so they go on counting."""
        known = max((queue.log_end for queue in store.queues()), default=0)
        if not known or any(file.content for file in store.log_files):
            return False
        size = store.segment_bytes
        path = store.log_path(known + -known % size)
        self._on_act(f"{store.log_folder}: nothing is left of the log; {path.name} is made, where it goes on")
        for file in store.log_files:
            file.path.unlink()
        path.parent.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
        self._touched.add(path)
        return True

    def _restore_sizes(self, store: StoppedStore) -> bool:
        """Give log files back their size; a missing one comes back empty."""
        acted = False
        for path, text in store.wrong_log_files():
            self._on_act(f"{path}: {text}; made whole, without what is lost")
            with path.open("r+b" if path.exists() else "wb") as file:
                file.truncate(store.segment_bytes)
            acted = True
            self._touched.add(path)
        return acted

    def _fill(self, checking: Checking, damage: Damage) -> None:
        file, start = damage.file, damage.start - damage.file.base
        file_end = checking.store.segment_bytes
        end = damage.end - file.base
        if damage.is_tail:
            known = checking.queues.log_ends_at - file.base
            end = min(known, file_end) if known > start else start
        self._keep(damage)
        if damage.is_tail:
            self._on_act(f"{file.path} byte {end}: cleared up to its end: no sound record is there")
            self._write(file.path, end, bytes(file.data_end - end if file.data_end > end else 0))
        if end == start:
            return
        if end == file_end and not damage.is_tail:
            self._on_act(f"{file.path} byte {start}: the rest of the file is made a blank record")
            self._write(file.path, start, blank(end - start))
        elif end - start >= _LEAST:
            self._on_act(f"{file.path} byte {start}: {end - start} damaged bytes are made a record that says so")
            self._fill_with_stand_ins(damage, start, end, checking)
        else:
            self._on_act(
                f"{file.path} byte {start}: {counted(end - start, 'damaged byte')}, too few to be filled; left"
            )

    def _fill_with_stand_ins(self, damage: Damage, start: int, end: int, checking: Checking) -> None:
        while start < end:
            size = end - start
            if size > _MOST:
                size = min(_MOST, size - _LEAST)  # what is left has to be a record too
            self._write(damage.file.path, start, self._stand_in(damage, start, size, checking))
            start += size

    def _stand_in(self, damage: Damage, start: int, size: int, checking: Checking) -> bytes:
        """Return a record of that size in no queue, with the damaged bytes from position `start` on in its body."""
        topic = _TOPIC[: size - FIXED_SIZE]
        body_size = size - FIXED_SIZE - len(topic)
        body = bytes(damage.file.content[start : start + body_size]).ljust(body_size, b"\0")
        record = StoredMessage(topic, body, "", sys_flag=SysFlag.ROLLBACK, born_address=bytes(8))
        record.store_address = bytes(8)
        record.log_offset = damage.file.base + start
        record.store_ms = record.born_ms = damage.store_ms or _store_ms(checking.store, damage.end)
        content = encode(record)
        assert len(content) == size
        return content

    def _keep(self, damage: Damage) -> None:
        start, end = damage.start - damage.file.base, damage.end - damage.file.base
        content = bytes(damage.file.content[start : min(end, damage.file.data_end)]) if damage.file.content else b""
        if content:
            folder = self._config.root / _KEPT
            folder.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)
            self._write(folder / f"{damage.start:020}", 0, content)

    # -- what follows from it

    def _close_gaps(self, checking: Checking) -> None:
        """Let the entries of lost messages lead nowhere."""
        for key, lost in checking.queues.lost.items():
            queue = checking.queues.queue(*key)
            for queue_offset, log_offset in lost:
                path, position = queue.path_of(queue_offset)
                self._write(path, position, pack_entry(log_offset, FILLER_SIZE, 0))
            first, last = lost[0][0], lost[-1][0]
            which = (
                f"the message at {first} is" if len(lost) == 1 else f"{len(lost)} messages from {first} to {last} are"
            )
            self._on_act(f"queue {key[0]} {key[1]}: {which} lost; consumers will pass over them")

    def _rebuild(self, checking: Checking) -> None:
        """Make broken queues again from the log."""
        broken = checking.queues.broken
        if not broken:
            return
        per_file = checking.queues.file_bytes // ENTRY_BYTES or self._config.consume_queue_entries
        table = QueueTable(self._config.root / "consumequeue", per_file)
        dispatcher = QueueDispatcher(self._config.delay_levels_ms)
        for topic, queue_id in sorted(broken):
            self._on_act(f"queue {topic} {queue_id}: made again from the log")
            table.make(topic, queue_id).delete()
        for message in LogWalk(StoppedStore(self._config)):
            if isinstance(message, StoredMessage) and (message.topic, message.queue_id) in broken:
                dispatcher.replay(message, table.make(message.topic, message.queue_id), complete=True)
        dispatcher.end_replay(complete=True)
        for key in broken & checking.queues.ends.keys():
            if not table.make(*key).max_offset:  # nothing of it is left in the log
                table.make(*key).begin_at(checking.queues.ends[key], 0)
        for key in broken & checking.queues.lost.keys():
            queue = table.make(*key)
            queue_offset, log_offset = checking.queues.lost[key][-1]
            if queue_offset >= queue.max_offset:  # else the next message would get its queue offset
                queue.begin_at(queue_offset + 1, log_offset)
        for queue in table:
            for segment in queue.files.segments:
                segment.sync()
            queue.release()

    def _drop_index(self, checking: Checking) -> None:
        """Remove index files from the first broken one on: the next start makes them again."""
        if checking.index.broken:
            paths = [path for path in sorted((self._config.root / "index").iterdir()) if path.name.isdecimal()]
            first = min(paths.index(path) for path in checking.index.broken)
            while first and checking.index.is_split(paths[first - 1]):  # its last record would not be looked at again
                first -= 1
            for path in paths[first:]:
                self._on_act(f"{path}: removed; the next start makes it again from the log")
                path.unlink()
            self._forget_index_end()

    def _forget_index_end(self) -> None:
        """Let the checkpoint not speak of index files that were removed: they would be missed."""
        path = self._config.root / "checkpoint"
        if path.exists():
            checkpoint = Checkpoint(path)
            checkpoint.load()
            checkpoint.index_ms = 0
            checkpoint.save()

    def _drop_checkpoint(self, report: Report) -> None:
        path = self._config.root / "checkpoint"
        if any(finding.path == path for finding in report.findings) and path.exists():
            self._on_act(f"{path}: removed; it is made again")
            path.unlink()

    # -- files

    def _write(self, path: Path, position: int, content: bytes) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY)
        try:
            while content:
                written = os.pwrite(descriptor, content, position)
                position, content = position + written, content[written:]
        finally:
            os.close(descriptor)
        self._touched.add(path)

    def _sync(self) -> None:
        for path in self._touched:
            for each in (path, path.parent):
                descriptor = os.open(each, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        self._touched.clear()


def _store_ms(store: StoppedStore, log_offset: int) -> int:
    place = store.record_at(log_offset)
    try:
        return decode(place[0].view, place[1]).store_ms if place is not None else 0
    except StoreCorrupt:
        return 0
