"""The data source `format("rocketmq")`: options, schema, readers and writers.

Spark loads this module in a separate process whenever Spark looks up any data source. Readers, writers and pyarrow are
therefore imported in functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from pyromq.errors import MQError, UsageError
from pyromq.spark import option_values
from pyromq.spark.columns import SINK_COLUMNS, SOURCE_COLUMNS
from pyromq.spark.given_options import read_options, sink_options
from pyromq.spark.options import BATCH, OPTIONS_OF_SPARK, STREAM, check_kept
from pyromq.spark.read.read_options import ReadOptions, check_source_column
from pyromq.spark.write.sink_options import SinkOptions, check_columns

if TYPE_CHECKING:
    from pyromq.spark.read.reader import RefusedStream, RocketMQReader, RocketMQStreamReader
    from pyromq.spark.write.writer import RocketMQStreamWriter, RocketMQWriter

# Keys of the column metadata with a table's options. Sources and sinks have different keys: rows read from one table
# keep its metadata when they are written to another table.
SOURCE, SINK = "rocketmq.source", "rocketmq.sink"
SINK_TABLE_COLUMNS = ("body", "keys", "tags")  # columns of a table to write to, unless option columns is given
_TYPES: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        StringType(),
        IntegerType(),
        LongType(),
        BinaryType(),
        TimestampType(),
        ArrayType(StringType()),
        MapType(StringType(), StringType()),
    )
}

_MAX_CHARACTERS = 2**31 - 1
_PREFIX = "option."  # Spark passes each option twice, with this prefix and without, besides properties of the table
_READS = {"subscribe", "subscribepattern", "assign"}


class RocketMQDataSource(DataSource):
    """The data source `rocketmq`: reads and writes topics, as batches and streams.

    Column `msgId` is the broker's id (store address and log offset), `uniqKey` the producer's. With `.schema(...)` only
    the columns of that schema are built.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        table = options_of_new_table(self.options)
        if table is None:
            return StructType(_source_columns(self._given))
        check_kept(table)
        if not is_written_to(table):
            return with_options(_source_columns(table), table, SOURCE)
        columns = sink_columns(table)
        _checked_sink(columns, table)
        return with_options(columns, table, SINK)

    def reader(self, schema: StructType) -> RocketMQReader:
        from pyromq.spark.read.reader import RocketMQReader

        return RocketMQReader(self._read_options(schema, BATCH), _columns(schema))

    def streamReader(self, schema: StructType) -> RocketMQStreamReader | RefusedStream:
        from pyromq.spark.read.reader import RefusedStream, RocketMQStreamReader

        try:
            return RocketMQStreamReader(self._read_options(schema, STREAM), _columns(schema))
        except MQError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        from pyromq.spark.write.writer import RocketMQWriter

        return RocketMQWriter(self._sink_options(schema, overwrite, BATCH))

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:
        from pyromq.spark.write.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(self._sink_options(schema, overwrite, STREAM))

    def _sink_options(self, schema: StructType, overwrite: bool, mode: str) -> SinkOptions:
        """Return the options of a write, checked against its columns. Raises `UsageError`."""
        if overwrite:
            raise UsageError("a topic cannot be overwritten; write with mode append")
        kept = options_of(schema, {}, SINK)
        if (columns := self._given.get("columns")) is not None and columns != kept.get("columns"):
            raise UsageError(
                f"option columns is {columns!r}, and is for reads and for new tables; select the columns in the query"
            )
        options = _checked_sink(schema.fields, kept | self._given, mode)
        place, name = self.options.get("checkpointlocation"), self.options.get("queryname")
        return replace(options, checkpoint=place, query_name=name)

    def _read_options(self, schema: StructType, mode: str) -> ReadOptions:
        """Return the checked options of a read, including those stored with the table. Raises `UsageError`."""
        given = options_of(schema, self._given, SOURCE)
        check_options(given)
        options = read_options(given, mode)
        if options.columns and set(options.columns) != set(schema.names):
            raise UsageError(
                f"option columns is {','.join(options.columns)}, and the schema has {','.join(schema.names)}; give one"
                " of the two, or select the columns in the query"
            )
        return options

    @property
    def _given(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name not in OPTIONS_OF_SPARK}


def _checked_sink(columns: list[StructField], given: Mapping[str, str], mode: str | None = None) -> SinkOptions:
    options = sink_options({name: value for name, value in given.items() if name != "columns"}, mode)
    check_columns({column.name: column.dataType.simpleString() for column in columns}, options)
    return options


def _source_columns(given: Mapping[str, str]) -> list[StructField]:
    names = read_options(given, None).columns or SOURCE_COLUMNS
    return [StructField(name, _type(name)) for name in names]


def _type(name: str) -> DataType:
    check_source_column(name)
    return _TYPES[SOURCE_COLUMNS[name]]


def _columns(schema: StructType) -> list[str]:
    """Return the column names. Raises `UsageError` for a column that does not exist or has another type."""
    for field in schema.fields:
        known = _type(field.name)
        if known.simpleString() != field.dataType.simpleString():
            given, has = field.dataType.simpleString(), known.simpleString()
            raise UsageError(f"column {field.name} is {has}, and the schema says {given}; correct the schema")
    return [field.name for field in schema.fields]


def options_of_new_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of the table that Spark creates; None if Spark creates no table."""
    if "provider" not in given:
        return None
    return {name.removeprefix(_PREFIX): value for name, value in given.items() if name.startswith(_PREFIX)}


def is_written_to(options: Mapping[str, str]) -> bool:
    """Return whether a new table is for writing: the table has option topic, and no option of topics to read."""
    return "topic" in options and not _READS & options.keys()


def with_options(columns: Iterable[StructField], options: Mapping[str, str], kept_as: str) -> StructType:
    """Return a schema that stores a table's options in the metadata of the first column.

    Spark passes the rows of an INSERT without this metadata if their names and types equal the table's. Rows never have
    a varchar column, so the first column of a table to write to has type varchar. Spark then always casts the rows and
    adds the metadata.
    """
    first, *others = columns
    kind = VarcharType(_MAX_CHARACTERS) if kept_as == SINK else first.dataType
    kept = StructField(first.name, kind, metadata={kept_as: json.dumps(dict(options), sort_keys=True)})
    return StructType([kept, *others])


def options_of(schema: StructType, given: Mapping[str, str], kept_as: str) -> dict[str, str]:
    """Return the options stored in the schema of a table; `given` options override stored ones."""
    kept = next((field.metadata[kept_as] for field in schema.fields if kept_as in field.metadata), "{}")
    options: dict[str, str] = json.loads(kept)
    return options | dict(given)


def check_options(options: Mapping[str, str]) -> None:
    """Raise `UsageError` without options: the table is for writing, or was created in a way that loses options."""
    if not options:
        raise UsageError(
            "options are missing: give subscribe, subscribePattern or assign. Spark keeps the options of a table"
            " in a catalog only when it is created without a list of columns (option columns chooses them), by CREATE"
            " TABLE, and not by saveAsTable, toTable or AS SELECT: drop the table and create it so, or give options"
            " with the query, FROM orders WITH (subscribe 'orders')"
        )


def sink_columns(options: Mapping[str, str]) -> list[StructField]:
    """Return the columns of a table to write to, column body first. Columns body and keys have type string."""
    given = options.get("columns")
    names = option_values.names("columns", given) if given is not None else SINK_TABLE_COLUMNS
    for name in names:
        if name not in SINK_COLUMNS:
            hint = option_values.did_you_mean(name, SINK_COLUMNS)
            raise UsageError(f"column {name!r} is unknown to the sink; {hint}")
    kinds = {name: "string" if "string" in SINK_COLUMNS[name] else SINK_COLUMNS[name][0] for name in names}
    return [StructField(name, _TYPES[kinds[name]]) for name in sorted(names, key=lambda name: name != "body")]
