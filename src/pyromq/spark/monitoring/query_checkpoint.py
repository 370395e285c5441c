"""Reads and resets a query's checkpoint in a local folder.

    offsets/N   planned: `v1`, a line of settings, then a line per source     commits/N   batch N is done

A restarted query continues after the newest batch in `offsets`, and repeats that batch first if it is not in `commits`.
A file N may have a checksum file `.N.crc`.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import Unavailable, UsageError
from pyromq.spark.given_options import read_options
from pyromq.spark.micro_batch import DONE, HEADING, PLANNED, StreamCheckpoint
from pyromq.spark.options import STREAM
from pyromq.spark.read.bounds import ReadBounds
from pyromq.spark.read.stream_offset import StreamOffset, read_stream_offset
from pyromq.whole_file import replace_file

GROUP = "pyromq-spark-checkpoint"


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """The newest micro-batches of a query, with their offsets.

    `batch` is the newest batch that is done, None before the first; `done` is the offset at its end. `planned` is the
    end of a batch that is planned but not done.
    """

    folder: Path
    batch: int | None
    done: StreamOffset | None
    planned: StreamOffset | None

    @property
    def newest(self) -> StreamOffset | None:
        return self.planned or self.done


def read_checkpoint(folder: Path) -> QueryCheckpoint:
    """Return the checkpoint in a folder.

    Raises `UsageError` if the folder is no checkpoint of a query over one rocketmq source.
    """
    if not (folder / PLANNED).is_dir():
        raise UsageError(f"{folder} is no checkpoint of a streaming query: it has no folder `offsets`")
    checkpoint = StreamCheckpoint(str(folder))
    planned, committed = checkpoint.batches(PLANNED), checkpoint.batches(DONE)
    batch = max(committed & planned, default=None)
    waiting = max(planned, default=None)
    return QueryCheckpoint(
        folder,
        batch,
        None if batch is None else _read(folder / PLANNED / str(batch)),
        None if waiting is None or waiting == batch else _read(folder / PLANNED / str(waiting)),
    )


def describe(checkpoint: QueryCheckpoint, namesrv: str) -> list[dict[str, Any]]:
    """Return one row per queue: offsets done and planned, and the queue's bounds at its broker.

    The bounds are None for a deleted topic.
    """
    newest = checkpoint.newest
    if newest is None:
        return []
    with QueueReader(GROUP, namesrv) as reader:
        known = set(reader.topics())
        bounds = reader.bounds(sorted(newest.topics & known))
    rows = []
    for queue in sorted(newest.positions.keys() | bounds.keys()):
        done = checkpoint.done.positions.get(queue) if checkpoint.done else None
        first, end = bounds.get(queue, (None, None))
        reached = done if done is not None else 0
        rows.append(
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "done": done,
                "planned": newest.positions.get(queue),
                "broker_min": first,
                "broker_max": end,
                "lag": None if end is None else max(end - reached, 0),
                "lost": None if first is None else max(first - reached, 0),
            }
        )
    return rows


def reset_to(folder: Path, namesrv: str, place: str) -> StreamOffset:
    """Reset the checkpoint of a query to `place` and return the new offset.

    `place` is earliest, latest, or a table as in option startingOffsets. A batch that was planned and not done counts
    as done: the sink may have its rows, so the number of the batch is not used again. A query with state uses the
    number again, since the query continues from the state of the previous batch. Raises `UsageError`, `DataLoss`, and
    `Unavailable` if a broker with queues to reset is not registered.
    """
    check_place(place)
    checkpoint = read_checkpoint(folder)
    if checkpoint.batch is None or checkpoint.done is None:
        raise UsageError(f"the query of {folder} has no batch that is done; delete the folder and use startingOffsets")
    given = {"namesrvAddr": namesrv, "subscribe": ",".join(sorted(checkpoint.done.topics)), "startingOffsets": place}
    options = read_options(given, STREAM)
    with QueueReader(GROUP, namesrv) as reader:
        if isinstance(options.starting_offsets, str):
            _check_brokers(checkpoint.done, reader, namesrv)
        bounds = reader.bounds(options.subscribe)
        chosen = ReadBounds(options, reader).beginnings(bounds, default="earliest")
    if isinstance(options.starting_offsets, dict):  # queues that the table does not name keep their offsets
        chosen = {queue: chosen[queue] for queue in options.starting_offsets}
    # The marks that identify topics are dropped: a topic may have been deleted and created again.
    offset = StreamOffset(checkpoint.done.positions | chosen, began=checkpoint.done.began)
    newest = max(StreamCheckpoint(str(folder)).batches(PLANNED))
    if newest != checkpoint.batch and (folder / "state").is_dir():
        for number in range(checkpoint.batch + 1, newest + 1):
            _remove(folder / PLANNED / str(number))
        newest = checkpoint.batch
    _write(folder / PLANNED / str(newest), offset)
    if newest != checkpoint.batch:
        commits = folder / DONE
        done = commits / str(checkpoint.batch)
        _replace(commits / str(newest), done.read_bytes(), like=done)
    return offset


def check_place(place: str) -> None:
    """Raise `UsageError` if a query cannot be reset to `place`."""
    if place.strip().lower() == "group":
        raise UsageError(f"option startingOffsets is {place!r}; a reset is to earliest, latest, or a table of offsets")
    read_options({"subscribePattern": ".*", "startingOffsets": place}, STREAM)


def _check_brokers(done: StreamOffset, reader: QueueReader, namesrv: str) -> None:
    registered = reader.brokers()
    if away := sorted({queue.broker_name for queue in done.positions}.difference(registered)):
        raise Unavailable(
            f"broker {away[0]} is not registered at {namesrv}, so its queues cannot be reset: start it, or write"
            " a table of the queues to reset"
        )


def _read(path: Path) -> StreamOffset:
    lines = path.read_text(encoding="utf-8").splitlines()
    sources = lines[HEADING:]
    if not lines or lines[0] != "v1" or len(sources) != 1:
        raise UsageError(f"{path} is not the offset of a query over one source")
    try:
        return read_stream_offset(json.loads(sources[0]))
    except (ValueError, AttributeError, KeyError) as error:
        raise UsageError(f"{path} has no offset of a rocketmq source: {sources[0][:80]!r}") from error


def _write(path: Path, offset: StreamOffset) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()[:HEADING]
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # checksum of the file's old content
    _replace(path, "\n".join([*lines, json.dumps(offset.as_json())]).encode(), like=path)


def _replace(path: Path, content: bytes, *, like: Path) -> None:
    """Write a file durably, with the permissions of `like`: on a full disk, a checkpoint must stay whole."""
    replace_file(path, content, mode=stat.S_IMODE(like.stat().st_mode))


def _remove(path: Path) -> None:
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
