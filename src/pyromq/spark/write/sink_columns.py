"""Names and types of the columns that a sink accepts, checked when a write is planned. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.errors import IllegalMessage, UsageError
from pyromq.message import NAME_VALUE, PAIRS, RESERVED_PROPERTIES
from pyromq.spark.added_properties import BORN
from pyromq.spark.declared_options import nearest
from pyromq.spark.write.sink_options import DROP, EXACTLY_ONCE, FAIL, SinkOptions

# Allowed types by column, in Spark's names.
SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "flag": ("int",),
    "uniqKey": ("string",),
    "shardingKey": ("string",),
    "queueId": ("int",),
    "brokerName": ("string",),
    "delayLevel": ("int",),
    "deliverTimestamp": ("timestamp",),
    "bornTimestamp": ("timestamp",),
}
_LOWER = {name.lower(): name for name in SINK_COLUMNS}
_EXTRA_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp")


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check names and types (in Spark's spelling). Raises `UsageError` naming both."""
    extra = [name for name in columns if name not in SINK_COLUMNS]
    _check_extra(extra, columns, options)
    for name in columns.keys() - extra:
        if columns[name] not in SINK_COLUMNS[name]:
            raise UsageError(f"column {name} is {columns[name]}; the sink takes {' or '.join(SINK_COLUMNS[name])}")
    if "body" not in columns:
        raise UsageError(f"the sink needs column body; there are {', '.join(columns) or 'none'}")
    if "topic" not in columns and options.topic is None:
        raise UsageError("give option topic, or a column topic")
    if options.order_by is not None and options.order_by not in columns:
        raise UsageError(f"option orderBy is {options.order_by}, but there is no such column")
    delays = [name for name in ("delayLevel", "deliverTimestamp") if name in columns]
    if len(delays) > 1:
        raise UsageError("give column delayLevel or column deliverTimestamp, not both")
    if delays and options.delivery == EXACTLY_ONCE:
        raise UsageError(f"column {delays[0]} is not possible with delivery=exactlyOnce: batches cannot be delayed")


def _check_extra(extra: list[str], columns: Mapping[str, str], options: SinkOptions) -> None:
    if extra and options.extra_columns == FAIL:
        quoted = ", ".join(repr(name) for name in extra)
        what = f"column {quoted} is" if len(extra) == 1 else f"columns {quoted} are"
        near = nearest(extra[0], SINK_COLUMNS)
        hint = f"did you mean {near}? " if near else ""
        raise UsageError(
            f"{what} unknown to the sink, which takes {', '.join(SINK_COLUMNS)}; {hint}leave them out, or set option "
            "extraColumns to drop or properties"
        )
    for name in extra:
        if options.extra_columns != DROP:
            if columns[name] not in _EXTRA_TYPES and not columns[name].startswith("decimal"):
                raise UsageError(f"column {name} is {columns[name]}, which cannot be a property; cast it to string")
            check_name(name)
        elif name.lower() in _LOWER:
            raise UsageError(f"column {name!r} would be dropped; rename it to {_LOWER[name.lower()]}, or leave it out")


def check_name(name: str) -> None:
    if not name.strip() or NAME_VALUE in name or PAIRS in name:
        raise IllegalMessage(f"property {name!r} is blank or contains a separator (character 1 or 2)")
    if name in RESERVED_PROPERTIES or name == BORN:
        raise IllegalMessage(f"property {name!r} is used by the system; choose another name")
