"""All consume queues of a store, by topic and queue id, and the file `queues` with the end of each queue.

On disk a queue is the folder `consumequeue/<topic>/<queue id>`. A start reads from the file `queues` which queues have
lost files or last entries:

    queues       a checked file (see `checked_file`) of JSON:
    logEnd       log offset: the file names the queues of all records before it, except queues of deleted topics
    ends         topic -> queue id -> maximum offset

All entries before the ends were on disk when the file was written. Queues may have more entries than the file says. The
file is absent while a topic is being deleted. RocketMQ has no such file, and ignores it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from pyromq.errors import MessageRefused, StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.platforms import platform
from pyromq.store.checked_file import read_checked, replace_checked
from pyromq.store.disk import LOCAL_DISK, Disk, remove_file
from pyromq.store.log.segmented_log import sync_folders
from pyromq.store.queue.consume_queue import ConsumeQueue, Mappings

logger = logger_of(__name__)

# Limit of queues with mapped files. Linux allows a process 65,530 mappings unless vm.max_map_count says otherwise. Each
# mapped queue takes 4 KiB of page tables.
MAX_MAPPED = min(platform.mapping_limit() * 3 // 4, 100_000)


class QueueTable:
    """All queues that have or had a message.

    `by_topic` is for lookup only: `make` adds queues, `delete` removes queues. `remove_deleted` deletes the files of
    removed queues. `is_incomplete`: some queues lack entries and must be rebuilt from the log. `has_new`: the ends file
    lacks some queues. `has_deleted`: the ends file names deleted queues and must be written again.
    """

    def __init__(self, folder: Path, entries_per_file: int, disk: Disk = LOCAL_DISK) -> None:
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.is_incomplete = False
        self.has_new = self.has_deleted = False
        self.ends_file = QueueEndsFile(folder.with_name("queues"), disk)
        self._deleted: dict[str, list[memoryview]] = {}  # deleted topic -> memory of its files that is still mapped
        self._saving = threading.Lock()  # guards the ends file, and the queues' ends while they are saved
        self.folder = folder
        self._mappings = Mappings(MAX_MAPPED)
        self._disk = disk
        self._entries_per_file = entries_per_file

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Iterate over all queues. Thread-safe."""
        for queues in list(self.by_topic.values()):
            yield from list(queues.values())

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.by_topic.get(topic)
        return None if queues is None else queues.get(queue_id)

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue of a topic; create the queue if there is none. The first entry creates the folder.

        Raises `StoreNotWritable` while files of a deleted topic of this name exist, `MessageRefused` for an illegal
        name.
        """
        queue = self.find(topic, queue_id)
        if queue is None:
            if topic in self._deleted:
                raise StoreNotWritable(f"topic {topic} is being deleted; try again later")
            if not is_folder_name(topic, queue_id):
                raise MessageRefused(
                    f"topic {topic!r} queue {queue_id} cannot be stored: the name is not a legal folder name"
                )
            folder = self.folder.joinpath(topic, str(queue_id))
            queue = ConsumeQueue(folder, self._entries_per_file, mappings=self._mappings, disk=self._disk)
            self.by_topic.setdefault(topic, {})[queue_id] = queue
            self.has_new = True
        return queue

    def load(self, saved_ends: QueueEnds, *, crashed: bool) -> None:
        """Find the queues on disk. A queue that ends where `saved_ends` says takes the least time.

        A queue with missing files or wrong file sizes is deleted, and recovery rebuilds the queue. Raises
        `StoreCorrupt` if no queue has correct files: then the configured sizes do not match the store.
        """
        misfits: list[tuple[ConsumeQueue, StoreCorrupt]] = []
        is_any_sound = False
        for topic in self._disk.names(self.folder):
            ends, folder = saved_ends.ends.get(topic, {}), self.folder / topic
            for name in self._disk.names(folder):
                end = ends.get(int(name), 0) if name.isdecimal() else None
                if end or (end is not None and self._disk.is_folder(folder / name)):
                    queue = self.make(topic, int(name))
                    if not crashed and queue.load_as_saved(end):
                        is_any_sound = True
                        continue
                    try:
                        if not queue.load(crashed=crashed):
                            logger.warning("%s lacks files. This queue is rebuilt from the log", queue.files.folder)
                            self.is_incomplete = True
                        is_any_sound = is_any_sound or queue.max_offset > 0
                    except StoreCorrupt as error:
                        misfits.append((queue, error))
        if misfits and not is_any_sound:
            raise misfits[0][1]
        for queue, misfit in misfits:
            logger.warning("%s. This queue is rebuilt from the log", str(misfit).partition(":")[0])
            queue.delete()
            self.is_incomplete = True

    def drop_without_first_file(self) -> None:
        """Delete queues without their first files, so that recovery rebuilds these queues.

        Only for a log that begins at offset 0, where no message has expired.
        """
        for queue in [queue for queue in self if queue.files.base]:
            logger.warning("%s lacks its first files. This queue is rebuilt from the log", queue.files.folder)
            queue.delete()
            self.is_incomplete = True

    def check_ends(self, saved_ends: QueueEnds) -> None:
        """Set `is_incomplete` if a queue ends before its saved end, and so has lost files or entries."""
        for topic, ends in saved_ends.ends.items():
            for queue_id, end in ends.items():
                queue = self.make(topic, queue_id)
                if queue.max_offset < end:
                    logger.warning(
                        "%s has lost its entries from %d to %d. This queue is rebuilt from the log",
                        *(queue.files.folder, queue.max_offset, end - 1),
                    )
                    self.is_incomplete = True

    def restore_ends(self, saved_ends: QueueEnds) -> None:
        """Raise the maximum offset of every queue to its saved end, even if the log has lost the last messages."""
        for topic, ends in saved_ends.ends.items():
            for queue_id, end in ends.items():
                self.make(topic, queue_id).restore_end(end)

    def save_ends(self, log_end: int) -> None:
        """Save the flushed end of each queue. The log must be flushed up to log offset `log_end`.

        For the flusher's thread.
        """
        with self._saving:
            self.has_new = self.has_deleted = False
            ends: dict[str, dict[int, int]] = {}
            for queue in self:
                if queue.max_offset or queue.reserved:  # the file also names queues without flushed entries
                    ends.setdefault(queue.topic, {})[queue.queue_id] = queue.flushed_offset
            self.ends_file.save(QueueEnds(log_end, ends))

    def begin_again(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Delete a queue's entries from `queue_offset` on, because the master has deleted them.

        Blocks while the ends file is saved. Raises `OSError`.
        """
        with self._saving:
            self.ends_file.delete()  # otherwise a start after a crash would report the deleted entries as lost
            self.has_deleted = True
            queue.cut_at(queue_offset)
            queue.min_offset = min(queue.min_offset, queue_offset)

    def drop_entries(self, topic: str, log_offset: int) -> bool:
        """Empty the queues of a topic whose entries all lead to records before a log offset, as `begin_again` does.

        The topic was deleted at this log offset. Return whether there were any. Blocks while the ends file is saved.
        Raises `OSError`.
        """
        obsolete = [queue for queue in self.by_topic.get(topic, {}).values() if 0 < queue.covered_to <= log_offset]
        for queue in obsolete:
            self.begin_again(queue, 0)
        return bool(obsolete)

    def delete(self, topic: str) -> None:
        """Remove the queues of a topic. Their files stay until `remove_deleted` is called."""
        self.has_deleted = True
        mapped = [memory for queue in self.by_topic.pop(topic, {}).values() for memory in queue.give_up()]
        if is_folder_name(topic):
            self._deleted.setdefault(topic, []).extend(mapped)

    def remove_deleted(self, between: Callable[[], None] = lambda: None) -> None:
        """Delete the files of deleted queues durably; blocks. For the flusher's thread. Raises `OSError`.

        `between` is called after each deleted queue.
        """
        if not self._deleted:
            return
        self.ends_file.delete()  # otherwise a start after a crash would report the deleted entries as lost
        topics = list(self._deleted)
        for topic in topics:
            self._deleted[topic].clear()
            folder = self.folder / topic
            for name in self._disk.names(folder):
                self._disk.remove_folder(folder / name)
                between()
            self._disk.remove_folder(folder)
        try:
            sync_folders([self.folder], self._disk)
        finally:
            for topic in topics:
                del self._deleted[topic]

    def clear(self) -> None:
        """Delete all queues and their files."""
        for topic in list(self.by_topic):
            self.delete(topic)
        self.remove_deleted()

    def release(self) -> None:
        """Unmap the files of all queues. The next use of a file maps the file again."""
        for queue in self:
            queue.release()


class QueueEnds(msgspec.Struct, frozen=True):
    """The content of the file `queues`: the saved end of each queue; empty if there is no file."""

    log_end: int = msgspec.field(default=0, name="logEnd")
    ends: dict[str, dict[int, int]] = {}


class QueueEndsFile:
    """The file `queues`. Only one thread at a time may use this object.

    That thread is the flusher's thread, or the thread that opens or closes the store while no flusher runs.
    """

    def __init__(self, path: Path, disk: Disk = LOCAL_DISK) -> None:
        self._path = path
        self._disk = disk

    def load(self) -> QueueEnds:
        """Return the saved ends of the queues. A damaged file is logged and read as an absent file."""
        try:
            text = read_checked(self._disk, self._path)
            return QueueEnds() if text is None else msgspec.json.decode(text, type=QueueEnds)
        except (StoreCorrupt, msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("%s; it is rebuilt: this start cannot detect queues that lost files", error)
            return QueueEnds()

    def save(self, ends: QueueEnds) -> None:
        """Write the file durably. An error is logged, not raised, and the previous file stays."""
        try:
            replace_checked(self._disk, self._path, msgspec.json.encode(ends))
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error.strerror)

    def delete(self) -> None:
        """Delete the file of queue ends durably. An error is logged, not raised.

        Must be called before files of queues are deleted.
        """
        try:
            remove_file(self._disk, self._path)
            self._disk.sync_folder(self._path.parent)
        except OSError as error:
            logger.warning("cannot remove %s: %s", self._path, error)


def is_folder_name(topic: str, queue_id: int = 0) -> bool:
    """Return True if topic and queue id are legal folder names.

    Names that clients send must not lead out of the store's folder.
    """
    return bool(topic) and "/" not in topic and "\0" not in topic and topic not in (".", "..") and queue_id >= 0
