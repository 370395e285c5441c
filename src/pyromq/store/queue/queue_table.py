"""Topic and queue id -> consume queue: `consumequeue/<topic>/<queue id>` on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pyromq.errors import MessageRefused, StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.queue.consume_queue import ConsumeQueue
from pyromq.store.queue.mappings import Mappings
from pyromq.store.queue.queue_ends_file import NotedQueues, QueueEndsFile

logger = logger_of(__name__)

MOST_MAPPED = 20_000  # queues; nearly all have one file mapped


class QueueTable:
    """Every queue that has or had a message. `by_topic` is for lookup only; queues come by `make`, go by `delete`.

    What is deleted is not found any more, and leaves the disk with `remove_deleted`. `is_incomplete`: some lack entries
    and are to be made again from the log. `has_new`: queues that the note does not name; `has_deleted`: there is none
    any more.
    """

    def __init__(self, folder: Path, entries_per_file: int, disk: Disk = LOCAL_DISK) -> None:
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.is_incomplete = False
        self.has_new = self.has_deleted = False
        self.note = QueueEndsFile(folder.with_name("queues"), disk)
        self._deleted: dict[str, list[memoryview]] = {}  # topic: what was mapped of it
        self._folder = folder
        self._mappings = Mappings(MOST_MAPPED)
        self._disk = disk
        self._entries_per_file = entries_per_file

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """All queues. Safe to call from the flusher's thread."""
        for queues in list(self.by_topic.values()):
            yield from list(queues.values())

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.by_topic.get(topic)
        return None if queues is None else queues.get(queue_id)

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, a new one if there is none; its folder comes with its first entry.

        Raises `StoreNotWritable` while the folder of the one before, which was deleted, is still there.
        """
        queue = self.find(topic, queue_id)
        if queue is None:
            if topic in self._deleted:
                raise StoreNotWritable(f"topic {topic} is being deleted")
            if not names_folders(topic, queue_id):
                raise MessageRefused(f"topic {topic!r} queue {queue_id} cannot be stored: no legal names")
            folder = self._folder / topic / str(queue_id)
            queue = ConsumeQueue(folder, self._entries_per_file, mappings=self._mappings, disk=self._disk)
            self.by_topic.setdefault(topic, {})[queue_id] = queue
            self.has_new = True
        return queue

    def load(self, *, crashed: bool) -> None:
        """Find the queues on disk; one whose files do not fit each other is dropped.

        Raises `StoreCorrupt` naming a file where none fits: the sizes in the settings are not those of the store.
        """
        misfits: list[tuple[ConsumeQueue, StoreCorrupt]] = []
        is_any_sound = False
        for topic in self._disk.names(self._folder):
            for name in self._disk.names(self._folder / topic):
                if name.isdecimal() and self._disk.is_folder(self._folder / topic / name):
                    queue = self.make(topic, int(name))
                    try:
                        if not queue.load(crashed=crashed):
                            logger.warning("%s lacks files. This queue is made again from the log", queue.files.folder)
                            self.is_incomplete = True
                        is_any_sound = is_any_sound or queue.max_offset > 0
                    except StoreCorrupt as error:
                        misfits.append((queue, error))
        if misfits and not is_any_sound:
            raise misfits[0][1]
        for queue, misfit in misfits:
            logger.warning("%s. This queue is made again from the log", str(misfit).partition(":")[0])
            queue.delete()
            self.is_incomplete = True

    def drop_headless(self) -> None:
        """Drop the queues whose first files are missing: of a log that begins at 0 nothing has expired."""
        for queue in [queue for queue in self if queue.files.base]:
            logger.warning("%s lacks its first files. This queue is made again from the log", queue.files.folder)
            queue.delete()
            self.is_incomplete = True

    def miss(self, noted: NotedQueues) -> None:
        """Look whether every queue has come as far as noted: else its files are gone, all or the last."""
        for topic, ends in noted.ends.items():
            for queue_id, end in ends.items():
                queue = self.make(topic, queue_id)
                if queue.max_offset < end:
                    logger.warning(
                        "%s has lost its entries from %d to %d. This queue is made again from the log",
                        *(queue.files.folder, queue.max_offset, end - 1),
                    )
                    self.is_incomplete = True

    def reach(self, noted: NotedQueues) -> None:
        """Let every queue go on where it was, also one whose last messages are not in the log any more."""
        for topic, ends in noted.ends.items():
            for queue_id, end in ends.items():
                self.make(topic, queue_id).go_on_at(end)

    def write_note(self, log_end: int) -> None:
        """Note how far each queue is, as far as that is on disk, for a log that is on disk up to `log_end`.

        Called by the flusher's thread.
        """
        self.has_new = self.has_deleted = False
        ends: dict[str, dict[int, int]] = {}
        for queue in self:
            if queue.max_offset or queue.reserved:  # entries that are not flushed yet: at least that there is one
                ends.setdefault(queue.topic, {})[queue.queue_id] = queue.flushed_offset
        self.note.save(NotedQueues(log_end, ends))

    def delete(self, topic: str) -> None:
        """Let a topic have no queues; their files go with `remove_deleted`."""
        self.has_deleted = True
        mapped = [memory for queue in self.by_topic.pop(topic, {}).values() for memory in queue.give_up()]
        if names_folders(topic):
            self._deleted.setdefault(topic, []).extend(mapped)

    def remove_deleted(self, between: Callable[[], None] = lambda: None) -> None:
        """Remove the files of deleted queues; `between` is called now and then. Called by the flusher's thread."""
        if self._deleted:
            self.note.forget()  # else a crash would have them missed
        for topic in list(self._deleted):
            self._deleted[topic].clear()
            folder = self._folder / topic
            for name in self._disk.names(folder):
                self._disk.remove_folder(folder / name)
                between()
            self._disk.remove_folder(folder)
            del self._deleted[topic]

    def clear(self) -> None:
        """Remove all queues with their files."""
        for topic in list(self.by_topic):
            self.delete(topic)
        self.remove_deleted()

    def release(self) -> None:
        """Give up all mappings until used: thousands of queues may be on disk, few are busy."""
        for queue in self:
            queue.release()


def names_folders(topic: str, queue_id: int = 0) -> bool:
    """Whether topic and queue may become names of folders: nothing from the wire must lead out of the store's."""
    return bool(topic) and "/" not in topic and "\0" not in topic and topic not in (".", "..") and queue_id >= 0
