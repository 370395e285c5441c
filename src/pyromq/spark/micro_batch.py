"""Identifies micro-batches by their checkpoints, so that a commit of one batch is not taken for another's.

    metadata         {"id": the query's id}
    offsets/N        planned: `v1` or `v2`, a line with settings and the time, then a line per source: the end of N
    commits/N        batch N is done
    sources/I/M      files that file source I has found in step M; its line in offsets/N has only M

A batch is identified by the offsets at which it begins (offsets/N-1) and ends (offsets/N) in each source. Rows are not
compared: a repeated batch has rows in another order, and `uuid()` returns other values. No Spark here.
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
HEADING = 2  # number of lines in file offsets/N before the lines of the sources: version and settings
# Line of a file source in offsets/N; in version `v2` the line begins with the source's name.
_FILES_STEP = re.compile(r'(?:(\w+):)?\{"logOffset":(-?\d+)\}')
# Errors of Arrow for unknown or unreachable locations, and of parsing files that are no checkpoint.
_UNREADABLE = (OSError, UsageError, pa.ArrowException, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Root:
    """The folder of an archive or of a checkpoint, with the file system that it is on."""

    files: pafs.FileSystem
    path: str

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def numbers(self, folder: str) -> set[int]:
        """Return the numbers that name the files in this folder.

        Every tenth file of a log of Spark has the suffix `.compact`.
        """
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
    """Open the folder at a path or URI, including `file:/folder` as Hadoop writes it.

    Raises `UsageError` if pyarrow cannot open the folder.
    """
    if re.match("file:/[^/]", location):
        location = location.removeprefix("file:")
    try:
        if "://" not in location:
            files, path = pafs.LocalFileSystem(), str(Path(location).absolute())
        else:
            files, path = pafs.FileSystem.from_uri(location)
        if isinstance(files, pafs.LocalFileSystem) and (file := _file_in(Path(path))) is not None:
            raise UsageError(f"folder {location!r} cannot be opened: {file} is a file; name a folder")
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"folder {location!r} cannot be opened: {error}") from error
    return Root(files, path.rstrip("/"))


def _file_in(path: Path) -> Path | None:
    """Return the part of a path that is a file, if there is one."""
    return next((each for each in (path, *path.parents) if each.is_file()), None)


class StreamCheckpoint:
    """The checkpoint of a streaming query, on any file system that pyarrow opens."""

    def __init__(self, location: str) -> None:
        self._root = open_root(location)

    @property
    def query(self) -> str:
        """The id of the streaming query, from file `metadata` of the checkpoint."""
        return str(json.loads(self._root.read("metadata"))["id"])

    def batches(self, folder: str) -> set[int]:
        """Return the numbers of the batches in folder PLANNED or DONE of the checkpoint. Spark removes old batches."""
        return self._root.numbers(folder)

    def content(self, batch: int) -> str:
        """Return a digest of a micro-batch's input.

        The input is the offsets where the batch begins and ends in each source, and the files that file sources found.
        """
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
        """Return path and time of the files that a file source found in a step.

        Every tenth log file (`.compact`) also has all previous steps.
        """
        name = f"sources/{source}/{step}"
        if not self._root.exists(name):
            name = f"{name}.compact"
        entries = [json.loads(line) for line in self._root.read(name).splitlines()[1:]]
        return sorted(f"{each['path']} {each['timestamp']}" for each in entries if each["batchId"] == step)


def _steps(sources: list[str]) -> dict[str, int]:
    """Return the last step of each source that reads files, by the name of the source's folder."""
    found = ((number, _FILES_STEP.fullmatch(line)) for number, line in enumerate(sources))
    return {step[1] or str(number): int(step[2]) for number, step in found if step is not None}


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """The micro-batch that a Spark task belongs to.

    `root` is the setting `spark.sql.streaming.checkpointLocation`, None if unset.
    """

    query: str
    batch: int
    root: str | None = None

    @classmethod
    def of_task(cls, context: TaskContext) -> StreamBatch | None:
        """Return the micro-batch that a Spark task belongs to; None outside of streams.

        Tasks that `foreachBatch` starts belong to the micro-batch too.
        """
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            return None
        return cls(query, int(batch), context.getLocalProperty("spark.sql.streaming.checkpointLocation"))

    def content(self, checkpoint: str | None, query_name: str | None) -> str | None:
        """Return a digest of the micro-batch's input; None if the checkpoint is not found or cannot be read.

        `checkpoint` and `query_name` are the query's options checkpointLocation and queryName.
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
    """Return number and input digest of the newest planned micro-batch; None without a readable checkpoint."""
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
    """The write that was committed under a name.

    `content` is the digest of its input and `rows` its number of rows; None if not recorded.
    """

    name: str
    content: str | None
    rows: int | None


def check_repeated(decided: DecidedWrite, *, content: str | None, rows: int | None) -> None:
    """Raise `BatchDecided` if a skipped write has other rows than the write that was committed under its name.

    Input digests are compared if both are known, else the numbers of rows. `rows` is None if the rows cannot be
    counted.
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
    difference = f"{decided.name} is decided, with {decided.rows} rows, and now has {rows}"
    if content is not None:  # committed by a version that recorded no input digest
        logger.warning("%s; the rows are assumed equal, and are not written again", difference)
        return
    raise BatchDecided(
        f"{difference}: the rows differ, and none of them is written. Give a job with different rows another jobId. For"
        " a stream whose checkpoint was restored or edited, restore the newest checkpoint, or begin a new one"
    )
