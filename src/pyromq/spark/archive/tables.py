"""Commits the files of an archive's batches: the files of a batch become visible together and once.

    ROOT/_pyromq/batches/QUERY/BATCH.json       commit: the files, with the offsets of each queue

The archive may be on any file system that pyarrow opens by URI. A Parquet archive keeps a JSON file for each committed
batch, the batch's page. Writing the page atomically is the commit. The batch's files are then moved to their visible
names; a repeated commit moves the files that a crash left. A Delta commit carries the query's id, the batch's number
and a digest of the batch's input (see `micro_batch`). No Spark here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from msgspec.structs import replace

from pyromq.errors import StoreCorrupt, UsageError
from pyromq.extras import install_command
from pyromq.spark.archive.archive_files import BOOKS, ArchiveFile, new_folder, spans_as_stats
from pyromq.spark.micro_batch import DecidedWrite, Root, check_repeated, open_root

PARTITIONS = ["topic", "date"]
# Keys of a Delta commit's metadata.
QUERY, BATCH, ROWS, CONTENT = "pyromq.query", "pyromq.batch", "pyromq.rows", "pyromq.content"
FORMATS = ("parquet", "delta")


def holds_delta(location: str) -> bool | None:
    """Return whether the archive at this path or URI is a Delta table; None if pyarrow cannot open the URI.

    Spark can open URIs that pyarrow cannot, for example `s3a://...`.
    """
    try:
        return _is_delta(open_root(location))
    except (UsageError, OSError):
        return None


def _is_delta(root: Root) -> bool:
    return root.files.get_file_info(root.at("_delta_log")).type is pafs.FileType.Directory


def check_format(location: str, form: str) -> None:
    """Raise `UsageError` if the folder holds an archive of the other format: no reader would find the new rows."""
    try:
        root = open_root(location)
        found = "delta" if _is_delta(root) else "parquet" if root.exists(f"{BOOKS}/batches") else form
    except (UsageError, OSError):  # pyarrow cannot open the URI, as in `holds_delta`
        return
    if found != form:
        raise UsageError(
            f"the archive at {location} has format {found}, and setting format is {form}: write {found}, or name"
            " another folder"
        )


class Page(msgspec.Struct, frozen=True):
    """The commit of one batch in a Parquet archive, stored as a JSON file."""

    query: str
    batch: int
    files: list[ArchiveFile]
    content: str | None = None  # digest of the batch's input, see `micro_batch`; None: not known

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def open_table(location: str, form: str) -> ParquetTable | DeltaTable:
    """Return the archive table at a path or URI.

    Raises `UsageError` for an unknown format, for a path with a file in it, or if the format's library is missing.
    """
    if form == "parquet":
        return ParquetTable(open_root(location))
    if form != "delta":
        raise UsageError(f"archive format {form!r} is unknown; write {' or '.join(FORMATS)}")
    if "://" not in location:
        open_root(location)
    return DeltaTable(location)


class ParquetTable:
    """An archive of Parquet files, with a JSON file for each committed batch."""

    hidden = True  # tasks write files under invisible names; the commit moves them to visible names

    def __init__(self, root: Root) -> None:
        self._root = root

    def commit(
        self, query: str, batch: int, files: Sequence[ArchiveFile], schema: pa.Schema, *, content: str | None = None
    ) -> bool:
        """Make the files of a batch visible and return True.

        Return False, and ignore the files, if the batch was committed before. `content` is a digest of the batch's
        input, see `micro_batch`. Raises `BatchDecided` if the batch was committed with other rows.
        """
        page = Page(query, batch, list(files), content)
        committed = self._page(query, batch)
        if committed is None:
            _check_written(self._root, files)
            self._write_page(page)
        self._publish(committed or page)
        for number in self._root.numbers(f"{BOOKS}/new/{query}") - {batch}:
            # A crash cut the commit of this batch, and a reset of the checkpoint prevented its repetition.
            if (earlier := self._page(query, number)) is not None:
                self._publish(earlier)
        if committed is not None:
            check_repeated(_decided(committed, committed.rows), content=content, rows=page.rows)
        return committed is None

    def _page(self, query: str, batch: int) -> Page | None:
        name = _page_name(query, batch)
        if not self._root.exists(name):
            return None
        try:
            return msgspec.json.decode(self._root.read(name), type=Page)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(
                f"{self._root.at(name)} is damaged, and is no list of an archive's committed batches: {error}"
            ) from error

    def _write_page(self, page: Page) -> None:
        name = _page_name(page.query, page.batch)
        self._root.make_folder_of(name)
        draft = self._root.at(f"{name}.{uuid4().hex}")
        with self._root.files.open_output_stream(draft) as file:
            file.write(msgspec.json.encode(page))
        self._root.files.move(draft, self._root.at(name))

    def _publish(self, page: Page) -> None:
        """Move the files of a batch to their visible names, and delete the files of its other attempts.

        Files that a previous commit moved are skipped.
        """
        for file in page.files:
            if self._root.exists(file.written):
                self._root.make_folder_of(file.path)
                self._root.files.move(self._root.at(file.written), self._root.at(file.path))
        if self._root.exists(folder := new_folder(page.query, page.batch)):
            self._root.files.delete_dir(self._root.at(folder))


def _check_written(root: Root, files: Sequence[ArchiveFile]) -> None:
    """Raise `UsageError` for a file that a task has written and the driver does not find: its rows would be lost."""
    for file in files:
        if not root.exists(file.written):
            raise UsageError(
                f"{root.at(file.written)}, which a task has written, does not exist for the driver: give a folder or"
                " URI that is the same folder for the driver and all executors"
            )


def _decided(page: Page, rows: int | None) -> DecidedWrite:
    return DecidedWrite(f"batch {page.batch} of query {page.query}", page.content, rows)


def _decided_in(history: Iterable[Mapping[str, Any]], page: Page) -> DecidedWrite | None:
    """Return the commit of the page's batch from the history of a Delta table.

    Return None if the history does not reach back to the batch. A batch without rows leaves no commit. If the history
    has an earlier batch of the query but not this one, this batch counts as committed with 0 rows.
    """
    noted = {int(commit[BATCH]): commit for commit in history if commit.get(QUERY) == page.query}
    if (commit := noted.get(page.batch)) is not None:
        return _decided(replace(page, content=commit.get(CONTENT)), int(commit[ROWS]))
    if page.files and min(noted, default=page.batch) < page.batch:
        return _decided(replace(page, content=""), 0)
    return None


def _page_name(query: str, batch: int) -> str:
    return f"{BOOKS}/batches/{query}/{batch:08}.json"


class DeltaTable:
    """A Delta table. Tasks write files under their final names; a commit that lists the files makes them visible."""

    hidden = False

    def __init__(self, location: str) -> None:
        try:
            import deltalake
            import deltalake.transaction as transactions
        except ImportError as error:
            raise UsageError(
                f"Delta archives need more packages; to install them: {install_command('lake')}"
            ) from error
        self._location = location
        self._delta = deltalake
        self._transactions = transactions

    def commit(
        self, query: str, batch: int, files: Sequence[ArchiveFile], schema: pa.Schema, *, content: str | None = None
    ) -> bool:
        """Make the files of a batch visible and return True.

        Return False, and ignore the files, if the batch was committed before. Raises `BatchDecided` as
        `ParquetTable.commit` does.
        """
        page = Page(query, batch, list(files), content)
        exists = self._delta.DeltaTable.is_deltatable(self._location)
        if exists:
            table = self._delta.DeltaTable(self._location)
            done = table.transaction_version(query)
            if done is not None and done >= batch:
                if (decided := _decided_in(table.history(), page)) is not None:
                    check_repeated(decided, content=content, rows=page.rows)
                return False
        if not files:
            return True
        _check_written(open_root(self._location), files)
        actions = [self._action(file) for file in files]
        note = {QUERY: query, BATCH: str(batch), ROWS: str(page.rows), CONTENT: content}
        properties = self._transactions.CommitProperties(
            app_transactions=[self._transactions.Transaction(query, batch)],
            custom_metadata={name: value for name, value in note.items() if value is not None},
        )
        delta_schema = self._delta.Schema.from_arrow(schema.append(pa.field("date", pa.string())))
        if exists:
            table.create_write_transaction(actions, "append", delta_schema, PARTITIONS, commit_properties=properties)
        else:
            self._transactions.create_table_with_add_actions(
                self._location, delta_schema, actions, "append", PARTITIONS, commit_properties=properties
            )
        return True

    def file_uris(self) -> list[str]:
        """Return the URIs of the files that readers see."""
        return [str(uri) for uri in self._delta.DeltaTable(self._location).file_uris()]

    def _action(self, file: ArchiveFile) -> Any:
        return self._transactions.AddAction(
            file.path,
            file.size,
            {"topic": file.topic, "date": file.date},
            int(time.time() * 1000),
            True,
            json.dumps(spans_as_stats(file)),
        )
