"""Tables in a catalog: Spark forgets the options of `CREATE TABLE ... USING rocketmq OPTIONS (...)`, but no columns.

So the first column keeps them as metadata, and Spark brings them back with the table's schema whenever it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pyspark.sql.types import (
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from pyromq.errors import UsageError

# Names of the metadata. Two, for what is read from a table keeps its metadata on the way into another.
SOURCE, SINK = "rocketmq.source", "rocketmq.sink"
SINK_TABLE_COLUMNS = ("body", "keys", "tags")  # of a table to write to, unless option columns says others
SINK_TYPES: dict[str, DataType] = {
    **dict.fromkeys(("body", "topic", "tags", "keys", "uniqKey", "shardingKey", "brokerName"), StringType()),
    **dict.fromkeys(("flag", "queueId", "delayLevel"), IntegerType()),
    **dict.fromkeys(("deliverTimestamp", "bornTimestamp"), TimestampType()),
    "properties": MapType(StringType(), StringType()),
}

_MOST_CHARACTERS = 2**31 - 1
_PREFIX = "option."  # Spark gives each option twice, with this and without, beside properties of the table
_READS = {"subscribe", "subscribepattern", "assign"}


def options_of_new_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of the table that Spark creates; None when it creates none."""
    if "provider" not in given:
        return None
    return {name.removeprefix(_PREFIX): value for name, value in given.items() if name.startswith(_PREFIX)}


def is_written_to(options: Mapping[str, str]) -> bool:
    """Whether a new table is one to write to: it names a topic, and none to read."""
    return "topic" in options and not _READS & options.keys()


def with_options(columns: Iterable[StructField], options: Mapping[str, str], kept_as: str) -> StructType:
    """Return a schema that keeps a table's options.

    Spark hands over the rows of an INSERT as they are, without the metadata, when their names and types are the
    table's. No rows have a varchar: so it always makes them fit, and gives them the metadata.
    """
    first, *others = columns
    kind = VarcharType(_MOST_CHARACTERS) if kept_as == SINK else first.dataType
    kept = StructField(first.name, kind, metadata={kept_as: json.dumps(dict(options), sort_keys=True)})
    return StructType([kept, *others])


def options_of(schema: StructType, given: Mapping[str, str], kept_as: str) -> dict[str, str]:
    """Return the options of a table with this schema; those given now count first."""
    kept = next((field.metadata[kept_as] for field in schema.fields if kept_as in field.metadata), "{}")
    options: dict[str, str] = json.loads(kept)
    return options | dict(given)


def check_options(options: Mapping[str, str]) -> None:
    """Raises `UsageError` where a table is one to write to, or was created in a way that loses its options."""
    if not options:
        raise UsageError(
            "there are no options to read by: give subscribe, subscribePattern or assign. Spark keeps those of a table"
            " in a catalog only when it is created without a list of columns (option columns chooses them), by CREATE"
            " TABLE, and not by saveAsTable, toTable or AS SELECT: drop such a table, and create it so; or give options"
            " with the query, FROM orders WITH (subscribe 'orders')"
        )


def sink_columns(options: Mapping[str, str]) -> list[StructField]:
    """Return the columns of a table to write to, body first. Bodies and keys are texts."""
    given = options.get("columns")
    names = [name.strip() for name in given.split(",")] if given else SINK_TABLE_COLUMNS
    for name in names:
        if name not in SINK_TYPES:
            raise UsageError(f"column {name!r} means nothing to the sink, which takes {', '.join(SINK_TYPES)}")
    return [StructField(name, SINK_TYPES[name]) for name in sorted(names, key=lambda name: name != "body")]
