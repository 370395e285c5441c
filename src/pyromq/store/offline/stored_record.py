"""Single records of a stopped store: by log offset, or by queue and queue offset; damaged ones as far as they go."""

from __future__ import annotations

from pyromq.errors import StoreCorrupt, UsageError
from pyromq.message import StoredMessage
from pyromq.record import decode
from pyromq.store.offline.log_walk import Damage, LogWalk
from pyromq.store.offline.stopped_store import StoppedQueue, StoppedStore
from pyromq.store.queue.consume_queue import FILLER_SIZE


def log_offset_of(store: StoppedStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """Return where the record of a queue's message begins. Raises `UsageError` where the queue has none."""
    folder = store.root / "consumequeue" / topic / str(queue_id)
    if "/" in topic or not folder.is_dir():
        raise UsageError(f"there is no queue {queue_id} of topic {topic!r} in {store.root}")
    queue = StoppedQueue(folder, topic, queue_id)
    entry = queue.entry(queue_offset)
    if entry is None:
        raise UsageError(f"queue {queue_id} of {topic} has entries from {queue.first} to {queue.end - 1}")
    if entry.size == FILLER_SIZE:
        raise UsageError(f"message {queue_offset} of queue {queue_id} of {topic} is lost: its entry leads nowhere")
    return entry.log_offset


def find_record(store: StoppedStore, log_offset: int) -> tuple[StoredMessage, str]:
    """Return the record that begins at a log offset, and what is wrong with it ("": nothing).

    Raises `UsageError` naming the nearest records where none begins there.
    """
    place = store.record_at(log_offset)
    if place is None:
        end = store.log_files[-1].base + store.segment_bytes if store.log_files else 0
        raise UsageError(f"the log has offsets from {store.log_begin} to {end}, not {log_offset}")
    file, position = place
    try:
        message = decode(file.view, position)
    except StoreCorrupt as error:
        raise UsageError(f"{file.path} byte {position}: {error}; {_neighbours(store, log_offset)}") from error
    if message.log_offset != log_offset:
        return message, f"it says that it belongs to log offset {message.log_offset}"
    try:
        decode(file.view, position, check_crc=True)
    except StoreCorrupt as error:
        return message, str(error)
    return message, ""


def _neighbours(store: StoppedStore, log_offset: int) -> str:
    """Say where the sound records nearest to a log offset begin, or where the log ends."""
    for around in (log_offset, log_offset - store.segment_bytes):  # the one before may be in the file before
        before = after = None
        damaged_to = 0
        walk = LogWalk(store, around=around)
        for found in walk:
            if isinstance(found, Damage):
                damaged_to = found.end
            elif found.log_offset >= log_offset:
                after = found.log_offset
                break
            else:
                before = found.log_offset
        if before is not None:
            break
    if after is None and log_offset >= max(walk.end, damaged_to):
        return f"the log ends at {walk.end}"
    if before is None:
        return "no sound record is before" + (
            ", and none behind" if after is None else f", the one behind begins at {after}"
        )
    return f"the sound record before begins at {before}, " + (
        "none is behind" if after is None else f"the one behind at {after}"
    )
