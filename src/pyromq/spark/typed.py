"""Bodies of JSON as columns: read as consumers with `subscribe(type=...)` read them, with the same reasons.

from pyromq.spark.typed import dead_letters, with_values

orders = with_values(messages, Order)
fitting = orders.where("unfit is null").select("value.*", "storeTimestamp")
dead_letters(orders.where("unfit is not null"), "billing").write.format("rocketmq").mode("append").save()
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from pyromq.client.admin.messages.dead_letters import ORIGIN_TOPIC
from pyromq.errors import UsageError
from pyromq.json_body import parts_of
from pyromq.message import Property
from pyromq.names import check_group, dead_letter_topic
from pyromq.spark.read.columns import UNDECODABLE
from pyromq.spark.value_columns import arrow_type, values_of

VALUE, UNFIT = "value", "unfit"

# A dataclass that is sent by value has to find this mark of a field without a default again, not a copy of it.
copyreg.pickle(type(MISSING), lambda _: "MISSING")


def with_values(messages: DataFrame, type: Any) -> DataFrame:
    """Return the messages of a source with two more columns: `value`, of the body, and `unfit`, why there is none.

    `type` is a dataclass, a `msgspec.Struct`, a pydantic model or a type of Python's own. Executors have to be able to
    import it; dataclasses and models may be of the program itself. Batch and stream. Raises `UsageError` for a type
    that makes no column or cannot be sent, and without column `body`.
    """
    if "body" not in messages.columns:
        raise UsageError(f"with_values needs column body; there are {', '.join(messages.columns)}")
    if taken := sorted({VALUE, UNFIT} & set(messages.columns)):
        raise UsageError(f"with_values makes columns {VALUE} and {UNFIT}; rename {', '.join(taken)}, which there is")
    sent = _Sent(type)
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
    """Return messages that have a reason in column `unfit` as dead letters of a group, as the sink takes them.

    `pyromq dlq` and the job `redrive` read them as any others. Raises `IllegalName` for what is no group.
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


class _Sent:
    """A type on its way to executors. Spark sends classes of the program itself by value."""

    def __init__(self, type: Any) -> None:
        self.type = type
        for part in parts_of(type):
            if isinstance(part, msgspec.inspect.StructType) and part.cls.__module__ == "__main__":
                name = part.cls.__name__
                raise UsageError(
                    f"{name} is a msgspec.Struct of the program itself, which Spark cannot send: put it into a module"
                    " that executors import, or make it a dataclass"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        for part in parts_of(self.type):
            if (owner := getattr(part, "cls", None)) is not None and "__msgspec_cache__" in vars(owner):
                del owner.__msgspec_cache__  # what msgspec keeps in a dataclass; it cannot be sent, and is made again
        return _Sent, (self.type,)


def _undecodable(batch: pa.RecordBatch) -> list[str | None]:
    if "properties" not in batch.schema.names:
        return [None] * batch.num_rows
    reasons: list[str | None] = pc.map_lookup(batch.column("properties"), UNDECODABLE, "last").to_pylist()
    return reasons
