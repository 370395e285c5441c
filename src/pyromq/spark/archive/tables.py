"""Commits batches to archives: a batch's files become visible together and once, even if Spark repeats the batch.

Parquet has no commits, so the archive keeps a book. Writing the batch's page atomically is the commit; its files are
then moved to their visible names, and again after an interruption. A Delta commit carries the query's id, the batch's
number and its content (see `batch_content`). No Spark here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from msgspec.structs import replace

from pyromq.errors import StoreCorrupt, UsageError
from pyromq.extras import install_command
from pyromq.spark.archive.files import BOOKS, ArchiveFile, Root, new_folder, open_root, spans_as_stats
from pyromq.spark.batch_content import DecidedWrite, check_repeated

PARTITIONS = ["topic", "date"]
QUERY, BATCH, ROWS, CONTENT = "pyromq.query", "pyromq.batch", "pyromq.rows", "pyromq.content"  # in a Delta commit
FORMATS = ("parquet", "delta")


class Page(msgspec.Struct, frozen=True):
    """A page of the book: the commit of one batch."""

    query: str
    batch: int
    files: list[ArchiveFile]
    content: str | None = None  # see `batch_content`

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class ArchiveTable(Protocol):
    """A table of committed files. With `hidden`, tasks write files invisibly and the commit moves them."""

    hidden: bool

    def commit(
        self, query: str, batch: int, files: Sequence[ArchiveFile], schema: pa.Schema, *, content: str | None = None
    ) -> bool:
        """Make a batch's files visible. Return False if the batch was committed before; these files are then ignored.

        `content` is the batch's digest, see `batch_content`. Raises `BatchDecided` if other rows were committed before.
        """
        ...


def open_table(location: str, form: str) -> ArchiveTable:
    """Return the table at a path or URI. Raises `UsageError` for an unknown format, or if its library is missing."""
    if form == "parquet":
        return ParquetTable(open_root(location))
    if form != "delta":
        raise UsageError(f"archive format {form!r} is none of {', '.join(FORMATS)}")
    return DeltaTable(location)


class ParquetTable:
    """Plain Parquet files with a book of commits."""

    hidden = True

    def __init__(self, root: Root) -> None:
        self._root = root

    def commit(
        self, query: str, batch: int, files: Sequence[ArchiveFile], schema: pa.Schema, *, content: str | None = None
    ) -> bool:
        page = Page(query, batch, list(files), content)
        committed = self._page(query, batch)
        if committed is None:
            self._write_page(page)
        self._publish(committed or page)
        folder = self._root.at(new_folder(query, batch))
        if self._root.files.get_file_info(folder).type is not pafs.FileType.NotFound:
            self._root.files.delete_dir(folder)
        if committed is not None:
            check_repeated(_decided(committed, committed.rows), content=content, rows=page.rows)
        return committed is None

    def pages(self) -> Iterator[Page]:
        """Yield the pages of all batches, by query and batch."""
        folder = pafs.FileSelector(self._root.at(f"{BOOKS}/batches"), recursive=True, allow_not_found=True)
        paths = [entry.path for entry in self._root.files.get_file_info(folder) if entry.base_name.endswith(".json")]
        yield from sorted(map(self._read, paths), key=lambda page: (page.query, page.batch))

    def _page(self, query: str, batch: int) -> Page | None:
        path = self._root.at(_page_name(query, batch))
        if self._root.files.get_file_info(path).type is pafs.FileType.NotFound:
            return None
        return self._read(path)

    def _read(self, path: str) -> Page:
        with self._root.files.open_input_file(path) as file:
            try:
                return msgspec.json.decode(file.read(), type=Page)
            except msgspec.MsgspecError as error:
                raise StoreCorrupt(f"{path} is not a page of an archive's book: {error}") from error

    def _write_page(self, page: Page) -> None:
        name = _page_name(page.query, page.batch)
        self._root.make_folder_of(name)
        draft = self._root.at(f"{name}.{uuid4().hex}")
        with self._root.files.open_output_stream(draft) as file:
            file.write(msgspec.json.encode(page))
        self._root.files.move(draft, self._root.at(name))

    def _publish(self, page: Page) -> None:
        """Move the files to their visible names; files that were moved before are skipped."""
        for file in page.files:
            written = self._root.at(file.written)
            if self._root.files.get_file_info(written).type is not pafs.FileType.NotFound:
                self._root.make_folder_of(file.path)
                self._root.files.move(written, self._root.at(file.path))


def _decided(page: Page, rows: int | None) -> DecidedWrite:
    return DecidedWrite(f"batch {page.batch} of query {page.query}", page.content, rows)


def _decided_in(history: Iterable[Mapping[str, Any]], page: Page) -> DecidedWrite | None:
    """Return a batch's record in a Delta table's history; None if the history does not reach back to it.

    A batch without rows has no commit: it is known to be empty if the query has an earlier commit.
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
    """A Delta table: files are written with their final names, and the commit lists them."""

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

    def _action(self, file: ArchiveFile) -> Any:
        return self._transactions.AddAction(
            file.path,
            file.size,
            {"topic": file.topic, "date": file.date},
            int(time.time() * 1000),
            True,
            json.dumps(spans_as_stats(file)),
        )
