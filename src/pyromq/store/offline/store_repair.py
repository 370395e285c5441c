"""Repairs a stopped store: rebuilds queues and index from the log, and keeps every intact record at its log offset.

Damage of the log is overwritten so that later records keep their offsets. At a file's end the damage becomes a blank
record, elsewhere a filler record, which is in no queue. The overwritten bytes are saved in the folder `damaged`. The
queue entry of a lost message becomes a filler, which consumers skip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from pyromq.clock import SystemClock
from pyromq.message import StoredMessage, SysFlag
from pyromq.plural import counted
from pyromq.record import FIXED_SIZE, blank, encode
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.disk import LOCAL_DISK, make_durable_folder, opened, write_all
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.log_walk import Damage
from pyromq.store.log.segmented_log import Segment, file_name, sync_all, sync_folders
from pyromq.store.offline.queue_check import QueueCheck
from pyromq.store.offline.stopped_store import StoppedStore
from pyromq.store.offline.store_check import Report, StoreCheck
from pyromq.store.queue.consume_queue import ENTRY_BYTES
from pyromq.store.queue.entry_verifier import EntryVerifier
from pyromq.store.queue.queue_table import QueueEnds, QueueTable
from pyromq.store.queue_dispatcher import QueueDispatcher
from pyromq.store.recovery import Recovery
from pyromq.store.store_config import StoreConfig

_TOPIC = "damaged"  # topic of filler records
_SAVED = "damaged"  # folder of the overwritten bytes, in the data folder
_LEAST = FIXED_SIZE + 1  # size of the smallest record (bytes): a topic of one character
_MOST = 4 << 20  # limit of a filler record (bytes), as brokers read a record into memory


class StoreRepair:
    """Repairs a store once. The caller must have locked the store.

    `on_act` is called with the text of each step, before the step.
    """

    def __init__(
        self,
        config: StoreConfig,
        on_act: Callable[[str], None],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._config = config
        self._on_act = on_act
        self._on_progress = on_progress

    def run(self) -> Report:
        """Repair the store. Return the report of a check after the repair. Raises `OSError`."""
        store = StoppedStore(self._config)
        self._begin_again(store)
        self._restore_sizes(store)
        check = StoreCheck(self._config, self._on_progress)
        report = check.run()
        for damage in report.damages:
            self._fill(check.store, damage, known_end=check.queues.lost_end)
        self._rebuild(check.store, check.queues, report)
        self._drop_index(check.index.broken)
        self._drop_checkpoint(report)
        return StoreCheck(self._config, self._on_progress).run()

    # -- the log

    def _begin_again(self, store: StoppedStore) -> None:
        """If the log has no bytes left, create a log file after the records that queues lead to.

        So queue offsets continue to ascend.
        """
        known = max((queue.entries.covered_to for queue in store.queues()), default=0)
        if not known or store.segments:
            return
        path = store.log_path(known + -known % store.segment_bytes)
        self._on_act(f"{store.log_folder}: nothing is left of the log; {path.name} is created, where it continues")
        for _, empty in store.log_rows:
            empty.unlink()
        make_durable_folder(LOCAL_DISK, path.parent)
        _resize(path, store.segment_bytes)

    def _restore_sizes(self, store: StoppedStore) -> None:
        """Restore the size of log files with a wrong size. A missing file is created, filled with zeros."""
        for path, text in store.wrong_log_files() if store.segments else ():
            self._on_act(f"{path}: {text}; made whole, without its lost bytes")
            _resize(path, store.segment_bytes)

    def _fill(self, store: StoppedStore, damage: Damage, *, known_end: int) -> None:
        """Overwrite a damaged range of the log.

        Before `known_end`, where the last queue entry leads, filler records are written. Later bytes at the log's end
        are cleared.
        """
        path, start, end = damage.path, damage.start - damage.base, damage.end - damage.base
        content = b""
        if not damage.is_empty:
            [content] = Segment(path, store.segment_bytes).read([(start, end - start)])
        if content := content.rstrip(b"\0"):
            folder = self._config.root / _SAVED
            make_durable_folder(LOCAL_DISK, folder)
            _write(folder / file_name(damage.start), 0, content)
        if damage.is_tail:
            end = max(start, min(known_end - damage.base, end))
            self._on_act(f"{path} byte {end}: cleared up to its end: no intact record is there")
            _write(path, end, bytes(max(len(content) - (end - start), 0)))
        elif end == store.segment_bytes:
            self._on_act(f"{path} byte {start}: the rest of the file becomes a blank record")
            _write(path, start, blank(end - start))
            return
        if 0 < end - start < _LEAST:
            self._on_act(f"{path} byte {start}: {counted(end - start, 'damaged byte')}, too few for a record; left")
        elif end > start:
            self._on_act(f"{path} byte {start}: {end - start} damaged bytes become a filler record")
            following = None if damage.store_ms else store.message_at(damage.end)
            store_ms = damage.store_ms if following is None else following.store_ms
            while start < end:
                size = end - start
                if size > _MOST:
                    size = min(_MOST, size - _LEAST)  # the remaining bytes must have room for a record too
                _write(path, start, _filler(content[:size], damage.base + start, size, store_ms))
                start, content = start + size, content[size:]

    # -- queues, index, checkpoint

    def _rebuild(self, store: StoppedStore, queues: QueueCheck, report: Report) -> None:
        """Delete broken queues, and run a recovery as a start does, which writes these queues again."""
        if not queues.broken:
            return
        config = store.config
        per_file = queues.file_bytes // ENTRY_BYTES or config.consume_queue_entries
        table = QueueTable(config.root / "consumequeue", per_file)
        ends: dict[str, dict[int, int]] = {}
        for (topic, queue_id), end in queues.ends.items():
            ends.setdefault(topic, {})[queue_id] = end
        for topic, queue_id in sorted(queues.broken):
            ends.setdefault(topic, {}).setdefault(queue_id, 0)
            self._on_act(
                f"queue {topic} {queue_id}: rebuilt from the log{_lost(queues.lost.get((topic, queue_id), []))}"
            )
            folder = config.root / "consumequeue" / topic
            LOCAL_DISK.remove_folder(folder / str(queue_id))
            sync_folders([folder], LOCAL_DISK)
        table.ends_file.save(QueueEnds(report.log_end, ends))
        clock = SystemClock()
        size = config.segment_bytes
        log = CommitLog(config.log_folder, size, clock=clock, max_record_bytes=size)
        dispatcher = QueueDispatcher(config.delay_levels_ms)
        checkpoint = Checkpoint(config.root / "checkpoint")
        checkpoint.load()
        recovery = Recovery(
            *(log, table, dispatcher),
            verifier=EntryVerifier(log, dispatcher.tags_code),
            check_crc=True,
            clock=clock,
            log_began=checkpoint.log_begin,
            may_be_torn=False,  # as in a check: a client may have sent zeros in topic or properties
        )
        recovery.run(crashed=store.crashed, safe_ms=checkpoint.safe_ms, power_loss=store.power_loss)
        sync_all((segment for queue in table for segment in queue.files.segments), LOCAL_DISK)
        table.release()
        log.close()

    def _drop_index(self, broken: Collection[Path]) -> None:
        """Delete index files from the first broken file on. The next start rebuilds these files."""
        if not broken:
            return
        folder = self._config.root / "index"
        for path in sorted(each for each in folder.iterdir() if each.name.isdecimal()):
            if path >= min(broken):
                self._on_act(f"{path}: removed; the next start rebuilds it from the log")
                path.unlink()
        LOCAL_DISK.sync_folder(folder)
        if (path := self._config.root / "checkpoint").exists():  # `index_ms` 0: the files are not reported as missing
            checkpoint = Checkpoint(path)
            checkpoint.load()
            checkpoint.index_ms = 0
            checkpoint.save()

    def _drop_checkpoint(self, report: Report) -> None:
        path = self._config.root / "checkpoint"
        if any(finding.path == path for finding in report.findings) and path.exists():
            self._on_act(f"{path}: removed; the next start creates it")
            path.unlink()
            LOCAL_DISK.sync_folder(path.parent)


def _lost(ranges: list[range]) -> str:
    count = sum(map(len, ranges))
    if not count:
        return ""
    first, last = ranges[0][0], ranges[-1][-1]
    which = f"the message at {first} is" if count == 1 else f"{count} messages from {first} to {last} are"
    return f"; {which} lost, and consumers skip {'it' if count == 1 else 'them'}"


def _filler(content: bytes, log_offset: int, size: int, store_ms: int) -> bytes:
    """Return a record of `size` bytes that is in no queue, with damaged bytes as body."""
    topic = _TOPIC[: size - FIXED_SIZE]
    body_size = size - FIXED_SIZE - len(topic)
    body = content[:body_size].ljust(body_size, b"\0")
    record = StoredMessage(topic, body, "", sys_flag=SysFlag.ROLLBACK, born_address=bytes(8))
    record.store_address = bytes(8)
    record.log_offset = log_offset
    record.store_ms = record.born_ms = store_ms
    return encode(record)


def _write(path: Path, position: int, content: bytes) -> None:
    """Write bytes at a file position and flush the file and its name."""
    with opened(LOCAL_DISK, path, create=True) as descriptor:
        write_all(LOCAL_DISK, descriptor, content, position)
        LOCAL_DISK.sync(descriptor)
    LOCAL_DISK.sync_folder(path.parent)


def _resize(path: Path, size: int) -> None:
    with opened(LOCAL_DISK, path, create=True) as descriptor:
        LOCAL_DISK.resize(descriptor, size)
        LOCAL_DISK.sync(descriptor)
    LOCAL_DISK.sync_folder(path.parent)
