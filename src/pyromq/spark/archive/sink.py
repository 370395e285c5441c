"""The sink `writeStream.format("rocketmq-archive")`: writes rows of source `rocketmq` to Parquet or Delta.

Each micro-batch is visible once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.spark.archive.archive_files import NEEDED, ArchiveFile, write_files
from pyromq.spark.archive.tables import FORMATS, check_format, open_table
from pyromq.spark.micro_batch import StreamBatch, open_root
from pyromq.spark.option_values import did_you_mean
from pyromq.spark.options import OPTIONS_OF_SPARK

logger = logger_of(__name__)

OPTIONS = ("path", "format")


@dataclass
class ArchivedFiles(WriterCommitMessage):
    """Carries the list of archive files that one Spark task wrote to the driver."""

    stream: StreamBatch
    files: list[ArchiveFile]


class ArchiveSink(DataSource):
    """The data source `rocketmq-archive`, for streams only.

    Options: `path` (folder or URI of the archive) and `format` (parquet or delta).
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-archive"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        given = {name.lower(): value for name, value in self.options.items() if name.lower() not in OPTIONS_OF_SPARK}
        if unknown := sorted(given.keys() - set(OPTIONS)):
            raise UsageError(f"option {unknown[0]!r} is unknown; {did_you_mean(unknown[0], OPTIONS)}")
        if "path" not in given:
            raise UsageError("option path is missing: the folder or URI of the archive")
        form = given.get("format", "parquet")
        if form not in FORMATS:
            raise UsageError(f"option format is {form!r}; write {' or '.join(FORMATS)}")
        check_format(given["path"], form)
        if missing := [name for name in NEEDED if name not in schema.names]:
            raise UsageError(f"an archive needs column {missing[0]}; the DataFrame has {', '.join(schema.names)}")
        writer = ArchiveWriter(given["path"], form, to_arrow_schema(schema, timezone="UTC"))
        writer.checkpoint = self.options.get("checkpointlocation")
        writer.query_name = self.options.get("queryname")
        return writer


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Writes archive files in Spark tasks and commits them on the driver.

    Tasks and driver have separate copies of this object, so commit messages carry the state.
    """

    checkpoint: str | None = None  # option checkpointLocation of the streaming query
    query_name: str | None = None

    def __init__(self, location: str, form: str, schema: pa.Schema) -> None:
        self._location = location
        self._form = form
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        stream = StreamBatch.of_task(context)
        assert stream is not None, "the writer is a stream's"
        hidden = open_table(self._location, self._form).hidden
        files = write_files(open_root(self._location), iterator, query=stream.query, batch=stream.batch, hidden=hidden)
        return ArchivedFiles(stream, files)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        filed = [message for message in messages if isinstance(message, ArchivedFiles)]
        if not filed:
            return
        files = [file for message in filed for file in message.files]
        stream = filed[0].stream
        content = stream.content(self.checkpoint, self.query_name)
        table = open_table(self._location, self._form)
        if not table.commit(stream.query, batchId, files, self._schema, content=content):
            logger.info("batch %d is in the archive already", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing. Readers never see the files of a failed attempt; the commit of a Parquet archive deletes them."""
