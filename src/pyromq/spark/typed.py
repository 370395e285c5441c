"""Parses JSON bodies to columns, with the same errors as consumers with `subscribe(type=...)`.

from pyromq.spark.typed import dead_letters, with_values

orders = with_values(messages, Order)
fitting = orders.where("unfit is null").select("value.*", "storeTimestamp")
letters = dead_letters(orders.where("unfit is not null"), "billing")
letters.write.format("rocketmq").option("nullBody", "tombstone").mode("append").save()
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from typing import Any

import msgspec

from pyromq.client.admin.messages.dead_letters import ORIGIN_TOPIC
from pyromq.errors import UsageError
from pyromq.extras import packages_of
from pyromq.json_body import parts_of
from pyromq.message import Property
from pyromq.names import check_group, dead_letter_topic
from pyromq.spark.columns import UNDECODABLE

with packages_of("spark", "pyromq.spark.typed"):
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    from pyromq.spark.value_columns import arrow_type, values_of

VALUE, UNFIT = "value", "unfit"

# Dataclasses that are sent by value compare fields with the object MISSING, which must therefore not be copied.
copyreg.pickle(type(MISSING), lambda _: "MISSING")


def with_values(messages: DataFrame, type: Any) -> DataFrame:
    """Return messages with two more columns: `value`, the parsed body, and `unfit`, the error if it cannot be parsed.

    `type` is a dataclass, a `msgspec.Struct`, a pydantic model or a built-in type. Executors must be able to import it;
    dataclasses and models may be defined in the program itself. For batches and streams. Raises `UsageError` without
    column `body`, and for a type that has no column type or cannot be sent.
    """
    if "body" not in messages.columns:
        raise UsageError(f"with_values needs column body; there are {', '.join(messages.columns)}")
    if taken := sorted({VALUE, UNFIT} & set(messages.columns)):
        raise UsageError(f"with_values adds columns {VALUE} and {UNFIT}; rename column {', '.join(taken)}")
    sent = _PickledType(type)
    fields = [
        StructField(VALUE, from_arrow_type(arrow_type(type), prefer_timestamp_ntz=False)),
        StructField(UNFIT, StringType()),
    ]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = values_of(sent.type)
        for batch in batches:
            columns = values(batch.column("body").to_pylist(), _undecodable(batch))
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, VALUE, UNFIT])

    return messages.mapInArrow(read, StructType([*messages.schema.fields, *fields]))


def dead_letters(unfit: DataFrame, group: str) -> DataFrame:
    """Return failed messages as dead letters of a group, with the columns of the sink.

    Column `unfit` has the reason. `pyromq dlq` and the job `redrive` read the dead letters like all others. A message
    without a body needs option nullBody=tombstone of the write; a body that cannot be decompressed is null unless it
    was read with onUndecodable=raw. Raises `IllegalName` for an illegal group.
    """
    check_group(group)
    more = {Property.RETRY_REASON: F.col(UNFIT), ORIGIN_TOPIC: F.col("topic")}
    added = F.create_map(*(part for name, value in more.items() for part in (F.lit(name), value)))
    own = F.map_filter("properties", lambda name, _: ~name.isin(*more, UNDECODABLE))
    return unfit.select(
        F.lit(dead_letter_topic(group)).alias("topic"),
        *("body", "tags", "keys", "uniqKey", "flag", "bornTimestamp"),
        F.map_concat(F.coalesce(own, F.create_map().cast("map<string,string>")), added).alias("properties"),
    )


class _PickledType:
    """Holds a type that is pickled for executors. Spark sends classes of the main program by value."""

    def __init__(self, type: Any) -> None:
        self.type = type
        for part in parts_of(type):
            if isinstance(part, msgspec.inspect.StructType) and part.cls.__module__ == "__main__":
                name = part.cls.__name__
                raise UsageError(
                    f"{name} is a msgspec.Struct of the program itself, which Spark cannot send: move it to a module"
                    " that executors import, or make it a dataclass"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        for part in parts_of(self.type):
            if (owner := getattr(part, "cls", None)) is not None and "__msgspec_cache__" in vars(owner):
                del owner.__msgspec_cache__  # msgspec's cache in a dataclass cannot be pickled, and is built again
        return _PickledType, (self.type,)


def _undecodable(batch: pa.RecordBatch) -> list[str | None]:
    if "properties" not in batch.schema.names:
        return [None] * batch.num_rows
    reasons: list[str | None] = pc.map_lookup(batch.column("properties"), UNDECODABLE, "last").to_pylist()
    return reasons
