"""`spark.read.format("rocketmq")`: options, schema and reader of the data source."""

from __future__ import annotations

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

from pyromq.errors import UsageError
from pyromq.spark.options import read_options
from pyromq.spark.reader import RocketMQReader

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


class RocketMQDataSource(DataSource):
    """Batch reads of topics.

    `msgId` is the broker's id (its address and the place in its log), `uniqKey` the producer's. With `.schema(...)`
    only the columns named there are built.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        return StructType([StructField(name, kind) for name, kind in COLUMNS.items()])

    def reader(self, schema: StructType) -> RocketMQReader:
        options = read_options({name: value for name, value in self.options.items() if name != "path"})
        return RocketMQReader(options, _columns(schema))


def _columns(schema: StructType) -> list[str]:
    """Return the wanted columns. Raises `UsageError` for one that does not exist or has another type."""
    for field in schema.fields:
        known = COLUMNS.get(field.name)
        if known is None:
            raise UsageError(f"column {field.name!r} does not exist; there are {', '.join(COLUMNS)}")
        if known.simpleString() != field.dataType.simpleString():
            given, has = field.dataType.simpleString(), known.simpleString()
            raise UsageError(f"column {field.name} is {has}, the schema says {given}")
    return [field.name for field in schema.fields]
