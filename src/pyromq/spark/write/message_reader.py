"""Converts rows in Arrow batches to messages. No Spark and no client here.

Arrow's functions join the properties of all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyromq.errors import IllegalMessage, UsageError
from pyromq.filter.filter import check_tag
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, PAIRS, Property
from pyromq.spark.columns import BORN, SINK_COLUMNS, TOMBSTONE, TOMBSTONE_BODY
from pyromq.spark.write.message_columns import MessageColumns
from pyromq.spark.write.sink_options import DROP, TOMBSTONES, SinkOptions, check_name, check_writable

logger = logger_of(__name__)

# Columns that become properties of other names. A column that the sink does not know becomes a property of its name.
_PROPERTIES = {
    "keys": Property.KEYS,
    "tags": Property.TAGS,
    "shardingKey": Property.SHARDING_KEY,
    "bornTimestamp": BORN,
}
_NUMBERS = ("flag", "queueId", "delayLevel")

# Spark has several Arrow types for lists and maps of strings; columns are cast to these two.
_STRING_LIST, _STRING_MAP = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())


class MessageReader:
    """Converts Arrow batches of rows to messages.

    `new_ids(count)` makes unique ids for rows without column uniqKey. `id_of(key)` returns the id of a row with value
    `key` in that column.
    """

    def __init__(self, options: SinkOptions, new_ids: Callable[[int], pa.Array], id_of: Callable[[str], str]) -> None:
        self._options = options
        self._new_ids = new_ids
        self._id_of = id_of

    def read(self, batch: pa.RecordBatch) -> MessageColumns:
        """Return the rows as messages. Raises `IllegalMessage` naming the column and value that cannot be sent."""
        if self._options.extra_columns == DROP:
            batch = batch.select([name for name in batch.schema.names if name in SINK_COLUMNS])
        if self._options.null_body == DROP:
            batch = _with_bodies(batch)
        columns = {name: _cast(name, batch.column(name)) for name in batch.schema.names}
        is_null = columns["body"].is_null()
        if self._options.null_body == TOMBSTONES:
            columns["body"] = pc.fill_null(columns["body"], TOMBSTONE_BODY)
        self._check_rows(columns)
        if "bornTimestamp" in columns and "properties" in columns:
            columns["bornTimestamp"] = _born_times(columns["bornTimestamp"], columns["properties"])
        # All pieces are joined at once, as each join copies them: a third of a task's time for rows of 100 B.
        pieces: list[pa.Array | str] = [Property.UNIQUE_KEY + NAME_VALUE]
        pieces.append(self._unique_ids(columns.get("uniqKey"), batch.num_rows))
        for name, column in columns.items():
            if name in _PROPERTIES or name not in SINK_COLUMNS:
                pieces += _property(_PROPERTIES.get(name, name), column)
        if "properties" in columns:
            pieces.append(_map_properties(columns["properties"]))
        pieces += _delays(columns, self._options.delay_levels)
        if is_null.true_count:
            pieces.append(pc.if_else(is_null, f"{PAIRS}{TOMBSTONE}{NAME_VALUE}true", ""))
        properties = pc.binary_join_element_wise(*pieces, "")
        return MessageColumns(columns, properties.cast(pa.binary()), self._options)

    def _check_rows(self, columns: Mapping[str, pa.Array]) -> None:
        if self._options.topic is None and columns["topic"].null_count:
            raise IllegalMessage("a row has no topic: column topic is null and option topic is not given")
        if self._options.topic is None:
            _check_topics(columns["topic"])
        if self._options.verify_tags and "tags" in columns:
            _check_tags(columns["tags"])
        lengths = pc.fill_null(pc.binary_length(columns["body"]), -1)
        if len(lengths) and (shortest := pc.min(lengths).as_py()) < 1:
            where = f"a row for topic {self._options.topic or columns['topic'][pc.index(lengths, shortest).as_py()]}"
            if shortest < 0:
                raise IllegalMessage(
                    f"{where} has null body; filter such rows, or set option nullBody to drop or tombstone"
                )
            raise IllegalMessage(f"{where} has empty body, which brokers refuse; filter such rows")

    def _unique_ids(self, keys: pa.Array | None, count: int) -> pa.Array:
        ids = self._new_ids(count)
        if keys is not None:
            made = [self._id_of(key) if key else None for key in keys.to_pylist()]
            ids = pc.coalesce(pa.array(made, pa.string()), ids)
        return ids


def _with_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    kept = batch.filter(batch.column("body").is_valid())
    if kept.num_rows < batch.num_rows:
        logger.info("%d rows with a null body are dropped", batch.num_rows - kept.num_rows)
    return kept


def _check_topics(topics: pa.Array) -> None:
    for topic in pc.unique(topics).to_pylist():
        try:
            check_writable(topic)
        except UsageError as error:
            raise IllegalMessage(f"column topic is {topic!r:.150} in a row: {error}") from error


def _check_tags(tags: pa.Array) -> None:
    """Raise `IllegalMessage` for a tag that no subscription can match. Producers refuse the same tags."""
    doubtful = pc.or_(pc.match_substring(tags, "|"), pc.not_equal(tags, pc.utf8_trim_whitespace(tags)))
    for tag in pc.unique(tags.filter(doubtful)).to_pylist():
        try:
            check_tag(tag)
        except IllegalMessage as error:
            raise IllegalMessage(f"column tags in a row: {error}; option verifyTags=false writes it") from error


def _cast(name: str, column: pa.Array) -> pa.Array:
    """Return column `name` cast to the Arrow type used here: binary for bodies, string for properties."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if name == "body":
        return column.cast(pa.binary())
    if name == "keys" and pa.types.is_nested(column.type):
        return _joined_keys(column.cast(_STRING_LIST))
    if name == "properties":
        return column.cast(_STRING_MAP)
    if name in ("bornTimestamp", "deliverTimestamp"):
        microseconds = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        return pc.divide(pc.add(microseconds, 999), 1000).cast(pa.string())  # rounded up to ms
    return column if name in _NUMBERS else column.cast(pa.string())


def _joined_keys(lists: pa.ListArray) -> pa.Array:
    """Return the keys of each row joined by blanks. Raises `IllegalMessage` for a key with a blank."""
    keys = lists.flatten()
    if len(wrong := keys.filter(pc.match_substring(keys, " "))):
        raise IllegalMessage(f"column keys has {wrong[0].as_py()!r:.80} in a row: a blank separates keys; replace it")
    if keys.null_count:
        kept = [None if row is None else [key for key in row if key] for row in lists.to_pylist()]
        lists = pa.array(kept, _STRING_LIST)
    return pc.binary_join(lists, " ")


def _born_times(born: pa.Array, maps: pa.MapArray) -> pa.Array:
    """Return the born times, null for copied messages.

    The properties of a copied message have the original's born time.
    """
    before = pc.fill_null(pc.map_lookup(maps, BORN, "last"), "")
    return pc.if_else(pc.equal(before, ""), born, pa.scalar(None, pa.string()))


def _property(name: str, values: pa.Array) -> list[pa.Array | str]:
    """Return pieces that joined are property `name` of each row.

    A property is `02 name 01 value`, or '' for null and empty values. Raises `IllegalMessage` for a value with a
    separator.
    """
    _check_separators(name, values)
    values = pc.fill_null(values, "")
    pieces: list[pa.Array | str] = [PAIRS + name + NAME_VALUE, values]
    if not len(values) or pc.min(pc.binary_length(values)).as_py() > 0:
        return pieces
    return [pc.if_else(pc.equal(values, ""), "", pc.binary_join_element_wise(*pieces, ""))]


def _check_separators(name: str, values: pa.Array) -> None:
    if not _may_have_separator(values):
        return
    for separator in (NAME_VALUE, PAIRS):
        if pc.any(pc.match_substring(values, separator)).as_py():
            wrong = values.filter(pc.match_substring(values, separator))[0].as_py()
            raise IllegalMessage(f"property {name}={wrong!r} contains a separator (character 1 or 2)")


def _may_have_separator(values: pa.StringArray) -> bool:
    """Return whether a value may contain a separator.

    The whole buffer is searched; if `values` is a slice, the match may lie in other rows.
    """
    content = values.buffers()[2]
    return content is not None and bool((np.frombuffer(content, np.uint8) <= ord(PAIRS)).any())


def _map_properties(maps: pa.MapArray) -> pa.Array:
    """Return column properties as `02 name 01 value 02 name 01 value` for each row, without pairs of empty value.

    Raises `IllegalMessage` for a name or value that cannot be sent.
    """
    lists = maps.cast(pa.list_(maps.type.field(0)))
    pairs = lists.flatten()
    names, values = pairs.field(0), pc.fill_null(pairs.field(1), "")
    for name in pc.unique(names).to_pylist():
        if name != BORN:  # a copied message that is copied again has this property
            check_name(name)
    for name in (name for name in pc.unique(names).to_pylist() if _has_separator(values.filter(pc.equal(names, name)))):
        _check_separators(name, values.filter(pc.equal(names, name)))
    joined = pc.binary_join_element_wise("", names, PAIRS)
    joined = pc.if_else(pc.equal(values, ""), "", pc.binary_join_element_wise(joined, values, NAME_VALUE))
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), joined), "")


def _has_separator(values: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, f"[{NAME_VALUE}{PAIRS}]")).as_py())


def _delays(columns: Mapping[str, pa.Array], max_levels: int) -> Iterator[pa.Array | str]:
    """Yield the pieces of the properties of delayed and scheduled messages.

    Raises `IllegalMessage` for a delay level out of range.
    """
    if (levels := columns.get("delayLevel")) is not None:
        levels = pc.if_else(pc.equal(levels, 0), pa.scalar(None, pa.int32()), levels)
        bounds = pc.min_max(levels).as_py()
        if bounds["min"] is not None and not 0 < bounds["min"] <= bounds["max"] <= max_levels:
            wrong = bounds["min"] if bounds["min"] <= 0 else bounds["max"]
            raise IllegalMessage(
                f"column delayLevel is {wrong} in a row, out of range: 1 to {max_levels}, or 0 for no delay; option "
                "delayLevels says how many levels the brokers have"
            )
        yield from _property(Property.DELAY, levels.cast(pa.string()))
    if (moments := columns.get("deliverTimestamp")) is not None:
        yield from _property(Property.TIMER_DELIVER_MS, moments)
