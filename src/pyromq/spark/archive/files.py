"""Writes the Parquet files of an archive in tasks: one per topic and day, invisible to readers until committed.

    ROOT/topic=orders/date=2026-11-21/QUERY-BATCH-....parquet      visible to readers
    ROOT/_pyromq/new/QUERY/BATCH/....parquet                       written, not committed
    ROOT/_pyromq/batches/QUERY/BATCH.json                          commit: the files, with the offsets of each queue

Days are those of `storeTimestamp` in UTC. All file systems that pyarrow opens by URI are possible. No Spark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pyromq.errors import UsageError

BOOKS = "_pyromq"  # readers ignore names that begin with an underscore
NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
DAY = "%Y-%m-%d"


class QueueSpan(msgspec.Struct, frozen=True):
    """The rows of one queue in a file."""

    broker: str
    queue_id: int
    first: int
    last: int
    rows: int


class ArchiveFile(msgspec.Struct, frozen=True):
    """One file. `written` and `path`, its names before and after the commit, are relative to the archive's root."""

    written: str
    path: str
    topic: str
    date: str
    rows: int
    size: int
    queues: list[QueueSpan]


@dataclass(frozen=True, slots=True)
class Root:
    """An archive's folder on its file system."""

    files: pafs.FileSystem
    path: str

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def make_folder_of(self, name: str) -> None:
        self.files.create_dir(self.at(name).rpartition("/")[0], recursive=True)


def open_root(location: str) -> Root:
    """Open an archive's root by its path or URI. Raises `UsageError`."""
    try:
        if "://" not in location:
            return Root(pafs.LocalFileSystem(), str(Path(location).absolute()))
        files, path = pafs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"archive {location!r} cannot be opened: {error}") from error
    return Root(files, path.rstrip("/"))


def holds_delta(location: str) -> bool | None:
    """Return whether this is a Delta table; None if pyarrow cannot open the URI, which Spark may (`s3a://...`)."""
    try:
        root = open_root(location)
        return root.files.get_file_info(root.at("_delta_log")).type is pafs.FileType.Directory
    except (UsageError, OSError):
        return None


def new_folder(query: str, batch: int) -> str:
    return f"{BOOKS}/new/{query}/{batch}"


def write_files(
    root: Root, batches: Iterable[pa.RecordBatch], *, query: str, batch: int, hidden: bool = True
) -> list[ArchiveFile]:
    """Write one task's rows and return its files; `hidden` files are invisible until committed.

    Raises `UsageError` if a required column is missing.
    """
    open_files: dict[tuple[str, str], _OpenFile] = {}
    try:
        for rows in batches:
            for topic, date, part in _parts(rows):
                file = open_files.get((topic, date))
                if file is None:
                    file = _OpenFile(root, part.schema, topic, date)
                    file.open(query, batch, hidden)
                    open_files[topic, date] = file  # only now: a file that failed to open cannot be closed
                file.write(part)
    finally:
        written = [file.close() for file in open_files.values()]
    return written


def _parts(rows: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """Split rows by topic and day; most batches have one of each."""
    if missing := [name for name in NEEDED if name not in rows.schema.names]:
        raise UsageError(f"an archive needs column {missing[0]}")
    if not rows.num_rows:
        return
    times, topics = rows.column("storeTimestamp"), rows.column("topic")
    different = pc.unique(topics).to_pylist()
    bounds = pc.min_max(times)
    first, last = pc.strftime(pa.array([bounds["min"], bounds["max"]], times.type), DAY).to_pylist()
    if len(different) == 1 and first == last:
        yield different[0], first, rows
        return
    days = pc.strftime(times, DAY)
    for topic in different:
        of_topic = pc.equal(topics, topic)
        for date in pc.unique(days.filter(of_topic)).to_pylist():
            yield topic, date, rows.filter(pc.and_(of_topic, pc.equal(days, date)))


@dataclass(slots=True)
class _OpenFile:
    root: Root
    schema: pa.Schema
    topic: str
    date: str
    name: str = ""
    path: str = ""
    writer: pq.ParquetWriter = None
    rows: int = 0
    spans: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)

    def open(self, query: str, batch: int, hidden: bool) -> None:
        file = f"{query[:8]}-{batch}-{uuid4().hex}.parquet"
        self.path = f"topic={self.topic}/date={self.date}/{file}"
        self.name = f"{new_folder(query, batch)}/{file}" if hidden else self.path
        self.root.make_folder_of(self.name)
        kept = [name for name in self.schema.names if name != "topic"]  # in the folder's name
        self.schema = pa.schema([self.schema.field(name) for name in kept])
        # Bodies and keys rarely repeat: their dictionaries would be built and discarded.
        few = [name for name in kept if name in ("brokerName", "queueId", "tags", "bornHost", "sysFlag", "flag")]
        self.writer = pq.ParquetWriter(
            self.root.at(self.name), self.schema, filesystem=self.root.files, use_dictionary=few, compression="zstd"
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self.writer.write_batch(rows.select(self.schema.names))
        self.rows += rows.num_rows
        brokers = rows.column("brokerName").dictionary_encode()
        queue_ids, offsets = rows.column("queueId").to_numpy(), rows.column("queueOffset").to_numpy()
        places = brokers.indices.to_numpy().astype(np.int64) << 32 | queue_ids
        for place in np.unique(places):
            mine = offsets[places == place]
            key = str(brokers.dictionary[int(place >> 32)]), int(place & 0xFFFFFFFF)
            first, last, count = self.spans.get(key, (int(mine[0]), int(mine[0]), 0))
            self.spans[key] = min(first, int(mine.min())), max(last, int(mine.max())), count + mine.size

    def close(self) -> ArchiveFile:
        self.writer.close()
        spans = [QueueSpan(*place, *span) for place, span in sorted(self.spans.items())]
        size = self.root.files.get_file_info(self.root.at(self.name)).size
        return ArchiveFile(self.name, self.path, self.topic, self.date, self.rows, size, spans)


def spans_as_stats(file: ArchiveFile) -> dict[str, Any]:
    """Return a file's statistics for Delta: the number of rows, and the bounds of their offsets."""
    return {
        "numRecords": file.rows,
        "minValues": {"queueOffset": min((span.first for span in file.queues), default=0)},
        "maxValues": {"queueOffset": max((span.last for span in file.queues), default=0)},
        "nullCount": {"queueOffset": 0},
    }
