"""What a streaming query's micro-batch holds, told from the checkpoint, so that a decision on one batch fits no other.

    metadata         {"id": the query's id}
    offsets/N        `v1` or `v2`, a line with Spark's settings and the time, then a line for each source: where N ends
    sources/I/M      files that file source I has found in step M; its lines in offsets/N only say M

A batch is where its sources begin (offsets/N-1) and end (offsets/N). Rows are not compared: Spark repeats a batch in
another order, and `uuid()` gives other bytes. No Spark here.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from pyromq.errors import BatchDecided, UsageError
from pyromq.logs import logger_of
from pyromq.spark.archive.files import Root, open_root

logger = logger_of(__name__)

HEADING = 2  # lines of offsets/N before the sources'
_FILES_STEP = re.compile(r'(?:(\w+):)?\{"logOffset":(-?\d+)\}')  # a file source's line; `v2` begins with its name
# What Arrow raises for places it does not know or reach, and what files that are no checkpoint's lead to.
_UNREADABLE = (OSError, UsageError, pa.ArrowException, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Which micro-batch a task belongs to. `root` is `spark.sql.streaming.checkpointLocation`, where that is set."""

    query: str
    batch: int
    root: str | None = None

    def content(self, checkpoint: str | None, query_name: str | None) -> str | None:
        """Return what identifies the batch's content; None if its checkpoint is not found or cannot be read.

        `checkpoint` and `query_name` are what the query's options say.
        """
        if checkpoint is None and self.root is not None and query_name is not None:
            checkpoint = f"{self.root}/{query_name}"
        if checkpoint is None:
            return None
        try:
            return _content(_root(checkpoint), self)
        except _UNREADABLE as error:
            logger.warning("checkpoint %s of query %s cannot be read: %s", checkpoint, self.query, error)
            return None


def planned_batch(checkpoint: str | None) -> tuple[int, str] | None:
    """Return the number and the content of the batch that was planned last; None if that cannot be read."""
    if checkpoint is None:
        return None
    try:
        root = _root(checkpoint)
        found = root.files.get_file_info(pafs.FileSelector(root.at("offsets")))
        newest = max((int(entry.base_name) for entry in found if entry.base_name.isdecimal()), default=None)
        if newest is None:
            return None
        content = _content(root, StreamBatch(_query(root), newest))
    except _UNREADABLE as error:
        logger.warning("checkpoint %s cannot be read: %s", checkpoint, error)
        return None
    return newest, content


@dataclass(frozen=True, slots=True)
class Decided:
    """What is known of the write that was decided under a name; None: it was not recorded."""

    name: str
    content: str | None
    rows: int | None


def check_repeated(decided: Decided, *, content: str | None, rows: int | None) -> None:
    """Raise `BatchDecided` if a write that is skipped, as its name is decided, has other rows than the decided one.

    Contents are compared where both are known, else the numbers of rows. `rows` is None where they cannot be counted.
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
        logger.warning("%s; they are taken for the same and not written again", text)
        return
    raise BatchDecided(
        f"{text}: these are others, and none of them is written. Give a job with other rows another jobId. For a stream"
        " whose checkpoint was restored or edited, put the newest one back or begin a new one"
    )


def _root(checkpoint: str) -> Root:
    """Return a checkpoint's folder. Hadoop writes `file:/folder` for a local one."""
    return open_root(checkpoint.removeprefix("file:") if re.match("file:/[^/]", checkpoint) else checkpoint)


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
    """Return the steps of those sources that read files, by the name of the source's folder."""
    found = ((number, _FILES_STEP.fullmatch(line)) for number, line in enumerate(sources))
    return {step[1] or str(number): int(step[2]) for number, step in found if step is not None}


def _query(root: Root) -> str:
    return str(json.loads(_read(root, "metadata"))["id"])


def _sources(root: Root, batch: int) -> list[str]:
    return _read(root, f"offsets/{batch}").splitlines()[HEADING:]


def _files(root: Root, source: str, step: int) -> list[str]:
    """Return the files that a file source has found in a step; every tenth log file holds all steps before, too."""
    name = f"sources/{source}/{step}"
    if root.files.get_file_info(root.at(name)).type is pafs.FileType.NotFound:
        name = f"{name}.compact"
    entries = [json.loads(line) for line in _read(root, name).splitlines()[1:]]
    return sorted(f"{each['path']} {each['timestamp']}" for each in entries if each["batchId"] == step)


def _read(root: Root, name: str) -> str:
    with root.files.open_input_file(root.at(name)) as file:
        return bytes(file.read()).decode()
