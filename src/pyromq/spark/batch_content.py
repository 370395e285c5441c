"""Identifies the input of a micro-batch from the checkpoint, so that a commit of one batch is not taken for another's.

    metadata         {"id": the query's id}
    offsets/N        `v1` or `v2`, a line with Spark's settings and the time, then a line per source: the end of N
    sources/I/M      files that file source I has found in step M; its line in offsets/N has only M

A batch is identified by the begins (offsets/N-1) and ends (offsets/N) of its sources. Rows are not compared: Spark
repeats a batch in a different order, and `uuid()` returns different bytes. No Spark here.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

from pyromq.errors import BatchDecided, UsageError
from pyromq.logs import logger_of

if TYPE_CHECKING:
    from pyspark import TaskContext

logger = logger_of(__name__)

HEADING = 2  # lines of offsets/N before those of the sources
_FILES_STEP = re.compile(r'(?:(\w+):)?\{"logOffset":(-?\d+)\}')  # a file source's line; `v2` begins with its name
# Errors of Arrow for unknown or unreachable locations, and of parsing files that are no checkpoint.
_UNREADABLE = (OSError, UsageError, pa.ArrowException, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Root:
    """The folder of an archive or a checkpoint on its file system."""

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


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """The micro-batch of a task. `root` is the setting `spark.sql.streaming.checkpointLocation`, if any."""

    query: str
    batch: int
    root: str | None = None

    @classmethod
    def of_task(cls, context: TaskContext) -> StreamBatch | None:
        """Return the micro-batch of a task, also within `foreachBatch`; None outside of streams."""
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            return None
        return cls(query, int(batch), context.getLocalProperty("spark.sql.streaming.checkpointLocation"))

    def content(self, checkpoint: str | None, query_name: str | None) -> str | None:
        """Return a digest of the batch's input; None if its checkpoint is not found or cannot be read.

        `checkpoint` and `query_name` are the query's options.
        """
        if checkpoint is None and self.root is not None and query_name is not None:
            checkpoint = f"{self.root}/{query_name}"
        if checkpoint is None:
            return None
        try:
            return _content(root_of(checkpoint), self)
        except _UNREADABLE as error:
            logger.warning("checkpoint %s of query %s cannot be read: %s", checkpoint, self.query, error)
            return None


def planned_batch(checkpoint: str | None) -> tuple[int, str] | None:
    """Return number and content of the batch that was planned last; None if they cannot be read."""
    if checkpoint is None:
        return None
    try:
        root = root_of(checkpoint)
        found = root.files.get_file_info(pafs.FileSelector(root.at("offsets")))
        newest = max((int(entry.base_name) for entry in found if entry.base_name.isdecimal()), default=None)
        if newest is None:
            return None
        content = _content(root, StreamBatch(_query(root), newest))
    except _UNREADABLE as error:
        logger.warning("checkpoint %s cannot be read: %s", checkpoint, error)
        return None
    return newest, content


def root_of(checkpoint: str) -> Root:
    """Return a checkpoint's folder. Hadoop writes `file:/folder` for a local folder."""
    return open_root(checkpoint.removeprefix("file:") if re.match("file:/[^/]", checkpoint) else checkpoint)


@dataclass(frozen=True, slots=True)
class DecidedWrite:
    """The record of the write that was decided under a name. Fields are None if they were not recorded."""

    name: str
    content: str | None
    rows: int | None


def check_repeated(decided: DecidedWrite, *, content: str | None, rows: int | None) -> None:
    """Raise `BatchDecided` if a skipped write has other rows than the write that was decided under its name.

    Contents are compared if both are known, else the numbers of rows. `rows` is None if they cannot be counted.
    """
    if content is not None and decided.content is not None:
        if content == decided.content:
            return
        raise BatchDecided(
            f"{decided.name} is decided, with other input: the checkpoint is older than that decision (a restored"
            " backup) or was edited. No row of this batch is written. Put the newest checkpoint back, or start the"
            " query with a new checkpoint folder at the first offsets that are missing in the target"
        )
    if rows is None or decided.rows is None or rows == decided.rows:
        return
    text = f"{decided.name} is decided, with {decided.rows} rows, and now has {rows}"
    if content is not None:  # decided before contents were recorded
        logger.warning("%s; they are assumed equal and not written again", text)
        return
    raise BatchDecided(
        f"{text}: the rows differ, and none of them is written. Give a job with different rows another jobId. For a"
        " stream whose checkpoint was restored or edited, put the newest one back or begin a new one"
    )


def _content(root: Root, batch: StreamBatch) -> str:
    if (query := _query(root)) != batch.query:
        raise UsageError(f"it belongs to query {query}")
    ends = _sources(root, batch.batch)
    begins = _sources(root, batch.batch - 1) if batch.batch else []
    digest = hashlib.sha256(json.dumps([batch.query, begins, ends]).encode())
    before = _steps(begins)
    for source, last in _steps(ends).items():
        files = [_files(root, source, step) for step in range(before.get(source, -1) + 1, last + 1)]
        digest.update(json.dumps(files).encode())
    return digest.hexdigest()


def _steps(sources: list[str]) -> dict[str, int]:
    """Return the steps of the sources that read files, by the name of the source's folder."""
    found = ((number, _FILES_STEP.fullmatch(line)) for number, line in enumerate(sources))
    return {step[1] or str(number): int(step[2]) for number, step in found if step is not None}


def _query(root: Root) -> str:
    return str(json.loads(_read(root, "metadata"))["id"])


def _sources(root: Root, batch: int) -> list[str]:
    return _read(root, f"offsets/{batch}").splitlines()[HEADING:]


def _files(root: Root, source: str, step: int) -> list[str]:
    """Return the files that a file source found in a step. Every tenth log file holds all previous steps, too."""
    name = f"sources/{source}/{step}"
    if root.files.get_file_info(root.at(name)).type is pafs.FileType.NotFound:
        name = f"{name}.compact"
    entries = [json.loads(line) for line in _read(root, name).splitlines()[1:]]
    return sorted(f"{each['path']} {each['timestamp']}" for each in entries if each["batchId"] == step)


def _read(root: Root, name: str) -> str:
    with root.files.open_input_file(root.at(name)) as file:
        return bytes(file.read()).decode()
