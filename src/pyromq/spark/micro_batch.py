"""Identifies micro-batches by their checkpoints, so that a commit of one batch is not taken for another's.

    metadata         {"id": the query's id}
    offsets/N        planned: `v1` or `v2`, a line with settings and the time, then a line per source: the end of N
    commits/N        batch N is done
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

PLANNED, DONE = "offsets", "commits"  # folders of a checkpoint
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

    def numbers(self, folder: str) -> set[int]:
        """Return the numbers that files of this folder are named by; a tenth file of Spark has suffix `.compact`."""
        entries = self.files.get_file_info(pafs.FileSelector(self.at(folder), allow_not_found=True))
        names = [entry.base_name.removesuffix(".compact") for entry in entries]
        return {int(name) for name in names if name.isdecimal()}

    def exists(self, name: str) -> bool:
        return self.files.get_file_info(self.at(name)).type is not pafs.FileType.NotFound

    def read(self, name: str) -> bytes:
        with self.files.open_input_file(self.at(name)) as file:
            return bytes(file.read())

    def make_folder_of(self, name: str) -> None:
        self.files.create_dir(self.at(name).rpartition("/")[0], recursive=True)


def open_root(location: str) -> Root:
    """Open a folder by its path or URI, also `file:/folder` as Hadoop writes it. Raises `UsageError`."""
    if re.match("file:/[^/]", location):
        location = location.removeprefix("file:")
    try:
        if "://" not in location:
            return Root(pafs.LocalFileSystem(), str(Path(location).absolute()))
        files, path = pafs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"folder {location!r} cannot be opened: {error}") from error
    return Root(files, path.rstrip("/"))


class StreamCheckpoint:
    """The checkpoint of a streaming query, on any file system that pyarrow opens."""

    def __init__(self, location: str) -> None:
        self._root = open_root(location)

    @property
    def query(self) -> str:
        """The query's id."""
        return str(json.loads(self._root.read("metadata"))["id"])

    def batches(self, folder: str) -> set[int]:
        """Return the numbers of the batches that are PLANNED or DONE. Spark removes old ones."""
        return self._root.numbers(folder)

    def content(self, batch: int) -> str:
        """Return a digest of a batch's input: begins and ends of its sources, and the files that file sources found."""
        ends = self._sources(batch)
        begins = self._sources(batch - 1) if batch else []
        digest = hashlib.sha256(json.dumps([self.query, begins, ends]).encode())
        before = _steps(begins)
        for source, last in _steps(ends).items():
            files = [self._files(source, step) for step in range(before.get(source, -1) + 1, last + 1)]
            digest.update(json.dumps(files).encode())
        return digest.hexdigest()

    def _sources(self, batch: int) -> list[str]:
        return self._root.read(f"{PLANNED}/{batch}").decode().splitlines()[HEADING:]

    def _files(self, source: str, step: int) -> list[str]:
        """Return the files that a file source found in a step. Every tenth log file holds all previous steps, too."""
        name = f"sources/{source}/{step}"
        if not self._root.exists(name):
            name = f"{name}.compact"
        entries = [json.loads(line) for line in self._root.read(name).splitlines()[1:]]
        return sorted(f"{each['path']} {each['timestamp']}" for each in entries if each["batchId"] == step)


def _steps(sources: list[str]) -> dict[str, int]:
    """Return the steps of the sources that read files, by the name of the source's folder."""
    found = ((number, _FILES_STEP.fullmatch(line)) for number, line in enumerate(sources))
    return {step[1] or str(number): int(step[2]) for number, step in found if step is not None}


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
            found = StreamCheckpoint(checkpoint)
            if found.query != self.query:
                raise UsageError(f"it belongs to query {found.query}")
            return found.content(self.batch)
        except _UNREADABLE as error:
            logger.warning("checkpoint %s of query %s cannot be read: %s", checkpoint, self.query, error)
            return None


def planned_batch(checkpoint: str | None) -> tuple[int, str] | None:
    """Return number and content of the batch that was planned last; None if they cannot be read."""
    if checkpoint is None:
        return None
    try:
        found = StreamCheckpoint(checkpoint)
        newest = max(found.batches(PLANNED), default=None)
        return None if newest is None else (newest, found.content(newest))
    except _UNREADABLE as error:
        logger.warning("checkpoint %s cannot be read: %s", checkpoint, error)
        return None


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
