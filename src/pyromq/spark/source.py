"""`format("rocketmq")`: options, schema, readers and writers of the data source.

Spark loads this module in a process of its own to learn the name, whenever any source is looked up: so what reads and
writes, and pyarrow with it, is loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
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
)

from pyromq.errors import MQError, UsageError
from pyromq.spark.connection_options import check_kept
from pyromq.spark.declared_options import nearest
from pyromq.spark.read.options import BATCH, STREAM, ReadOptions, read_options
from pyromq.spark.sql_tables import (
    SINK,
    SOURCE,
    check_options,
    is_written_to,
    options_of,
    options_of_new_table,
    sink_columns,
    with_options,
)
from pyromq.spark.write.options import SinkOptions, sink_options

if TYPE_CHECKING:
    from pyromq.spark.read.reader import RefusedStream, RocketMQReader, RocketMQStreamReader
    from pyromq.spark.write.writer import RocketMQStreamWriter, RocketMQWriter

COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "msgId": StringType(),
    "uniqKey": StringType(),
    "tags": StringType(),
    "keys": ArrayType(StringType()),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "bornHost": StringType(),
    "reconsumeTimes": IntegerType(),
    "sysFlag": IntegerType(),
    "flag": IntegerType(),
    "commitLogOffset": LongType(),
}

_OF_SPARK = frozenset({"checkpointlocation", "queryname"})  # options that Spark adds by itself


class RocketMQDataSource(DataSource):
    """Topics as batches and streams.

    `msgId` is the broker's id (its address and the place in its log), `uniqKey` the producer's. With `.schema(...)`
    only the columns named there are built.
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

        return RocketMQWriter(self._sink_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:
        from pyromq.spark.write.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(self._sink_options(schema, overwrite))

    def _sink_options(self, schema: StructType, overwrite: bool) -> SinkOptions:
        """Return the options checked, also against the columns. Raises `UsageError`."""
        if overwrite:
            raise UsageError("a topic cannot be overwritten; write with mode append")
        options = _checked_sink(schema.fields, options_of(schema, self._given, SINK))
        place, name = self.options.get("checkpointlocation"), self.options.get("queryname")
        return replace(options, checkpoint=place, query_name=name)

    def _read_options(self, schema: StructType, mode: str) -> ReadOptions:
        """Return the options checked. Raises `UsageError`."""
        given = options_of(schema, self._given, SOURCE)
        check_options(given)
        return read_options(given, mode)

    @property
    def _given(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name not in _OF_SPARK}


def _checked_sink(columns: list[StructField], given: Mapping[str, str]) -> SinkOptions:
    from pyromq.spark.write.sink_columns import check_columns

    options = sink_options({name: value for name, value in given.items() if name != "columns"})
    check_columns({column.name: column.dataType.simpleString() for column in columns}, options)
    return options


def _source_columns(given: Mapping[str, str]) -> list[StructField]:
    names = read_options(given, None).columns or COLUMNS
    return [StructField(name, _type(name)) for name in names]


def _type(name: str) -> DataType:
    kind = COLUMNS.get(name)
    if kind is None:
        near = nearest(name, COLUMNS)
        hint = f"did you mean {near}? " if near else ""
        raise UsageError(f"column {name!r} does not exist; {hint}there are {', '.join(COLUMNS)}")
    return kind


def _columns(schema: StructType) -> list[str]:
    """Return the wanted columns. Raises `UsageError` for one that does not exist or has another type."""
    for field in schema.fields:
        known = _type(field.name)
        if known.simpleString() != field.dataType.simpleString():
            given, has = field.dataType.simpleString(), known.simpleString()
            raise UsageError(f"column {field.name} is {has}, the schema says {given}")
    return [field.name for field in schema.fields]
