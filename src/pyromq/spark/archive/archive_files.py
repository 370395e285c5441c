"""Writes the rows of a Spark task as archive files: one for each topic and day of `storeTimestamp` in UTC.

    ROOT/topic=orders/date=2026-11-21/QUERY-BATCH-....parquet      the file's final path
    ROOT/_pyromq/new/QUERY/BATCH/....parquet                       its path before the commit, if it is hidden

No Spark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyromq.errors import UsageError
from pyromq.plural import counted
from pyromq.spark.micro_batch import Root

BOOKS = "_pyromq"  # folder of the commits: Parquet readers ignore names that begin with an underscore
NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
DAY = "%Y-%m-%d"


class QueueSpan(msgspec.Struct, frozen=True):
    """The rows of one queue in an archive file: first and last queue offset, and the number of rows."""

    broker: str
    queue_id: int
    first: int
    last: int
    rows: int


class ArchiveFile(msgspec.Struct, frozen=True):
    """A file of an archive, before and after its commit.

    `written` is the file's path before the commit and `path` after it, relative to the archive's root.
    """

    written: str
    path: str
    topic: str
    date: str
    rows: int
    size: int
    queues: list[QueueSpan]


def new_folder(query: str, batch: int) -> str:
    return f"{BOOKS}/new/{query}/{batch}"


def write_files(
    root: Root, batches: Iterable[pa.RecordBatch], *, query: str, batch: int, hidden: bool = True
) -> list[ArchiveFile]:
    """Write the rows of one Spark task as archive files and return the files.

    Files that are `hidden` are invisible until committed. Raises `UsageError` if a required column is missing.
    """
    open_files: dict[tuple[str, str], _OpenFile] = {}
    try:
        for rows in batches:
            for topic, date, part in _parts(rows):
                file = open_files.get((topic, date))
                if file is None:
                    file = _OpenFile(root, part.schema, topic, date)
                    file.open(query, batch, hidden)
                    open_files[topic, date] = file  # set after `open`: a file that failed to open cannot be closed
                file.write(part)
    finally:
        written = [file.close() for file in open_files.values()]
    return written


def _parts(rows: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """Yield topic, day and rows for each topic and day of column storeTimestamp. Most batches have one of each."""
    if missing := [name for name in NEEDED if name not in rows.schema.names]:
        raise UsageError(f"an archive needs column {missing[0]}; select it in the query")
    if not rows.num_rows:
        return
    for name in ("topic", "storeTimestamp"):  # without them, a row has no folder
        if nulls := rows.column(name).null_count:
            raise UsageError(
                f"an archive needs column {name} in each row, and it is null in {counted(nulls, 'row')}; filter such"
                " rows in the query"
            )
    # Spark passes times in the time zone of its session.
    times, topics = rows.column("storeTimestamp").cast(pa.timestamp("us", "UTC")), rows.column("topic")
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
        topic = self.topic.replace("%", "%25")  # readers decode `%` and two hex digits, as in `%DLQ%accounts`
        self.path = f"topic={topic}/date={self.date}/{file}"
        self.name = f"{new_folder(query, batch)}/{file}" if hidden else self.path
        self.root.make_folder_of(self.name)
        kept = [name for name in self.schema.names if name != "topic"]  # readers take the topic from the folder's name
        self.schema = pa.schema([self.schema.field(name) for name in kept])
        # Parquet dictionaries only for columns of few values: bodies and keys rarely repeat.
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
    """Return Delta's statistics of an archive file: the number of rows, and the least and greatest queue offset."""
    return {
        "numRecords": file.rows,
        "minValues": {"queueOffset": min((span.first for span in file.queues), default=0)},
        "maxValues": {"queueOffset": max((span.last for span in file.queues), default=0)},
        "nullCount": {"queueOffset": 0},
    }
