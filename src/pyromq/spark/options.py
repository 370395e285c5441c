"""The options of a read: one table of names, types and meaning, checked before anything is opened.

Knows no Spark. Spark hands option names over in lower case; users write them as documented.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from pyromq.errors import UsageError
from pyromq.filter.tags import parse_tags

# {"topic": {"broker": {"queue id": offset}}}, as the older connectors spell it
OffsetTable = dict[str, dict[str, dict[str, int]]]

EARLIEST, LATEST = -2, -1  # offsets with a meaning of their own, as Kafka's connector spells them


def _option(name: str, read: Callable[[str, str], Any], default: Any, doc: str) -> Any:
    return field(default=default, metadata={"name": name, "read": read, "doc": doc})


def _text(_name: str, value: str) -> str:
    return value


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"option {name} is {value!r}; write true or false")
    return value.lower() == "true"


def _number(least: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        if not value.isdecimal() or int(value) < least:
            raise UsageError(f"option {name} is {value!r}; write a whole number from {least} on")
        return int(value)

    return read


def _size(name: str, value: str) -> int:
    """Read `8388608`, `8m` or `512k`."""
    unit = {"k": 1 << 10, "m": 1 << 20}.get(value[-1:].lower(), 1)
    return _number(1)(name, value if unit == 1 else value[:-1]) * unit


def _time(name: str, value: str) -> int:
    """Read ms since 1970 or an ISO date and time."""
    if value.isdecimal():
        return int(value)
    try:
        return int(datetime.fromisoformat(value).timestamp() * 1000)
    except ValueError:
        raise UsageError(f"option {name} is {value!r}; write ms since 1970 or 2026-01-31T12:00:00") from None


def _topics(name: str, value: str) -> tuple[str, ...]:
    topics = tuple(topic for part in value.split(",") if (topic := part.strip()))
    if not topics:
        raise UsageError(f"option {name} names no topic; write orders or orders,payments")
    return topics


def _place(name: str, value: str) -> str | OffsetTable:
    if value.lower() in ("earliest", "latest"):
        return value.lower()
    return _offset_table(name, value)


def _offset_table(name: str, value: str) -> OffsetTable:
    example = '{"orders":{"broker-a":{"0":23,"1":-2}}}'
    try:
        return {
            topic: {
                broker: {str(int(queue)): int(offset) for queue, offset in queues.items()}
                for broker, queues in brokers.items()
            }
            for topic, brokers in json.loads(value).items()
        }
    except (ValueError, AttributeError, TypeError):
        raise UsageError(f"option {name} is {value!r}; write earliest, latest, or {example}") from None


def _assigned(name: str, value: str) -> dict[str, dict[str, list[int]]]:
    try:
        table = json.loads(value)
        return {
            topic: {broker: [int(queue) for queue in queues] for broker, queues in brokers.items()}
            for topic, brokers in table.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise UsageError(f'option {name} is {value!r}; write {{"orders":{{"broker-a":[0,1]}}}}') from None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read and how; the attribute docs are the user's documentation."""

    namesrv: str = _option("namesrvAddr", _text, "127.0.0.1:9876", "name servers, `host:port;host:port`")
    subscribe: tuple[str, ...] = _option("subscribe", _topics, (), "topics to read, separated by commas")
    assign: dict[str, dict[str, list[int]]] | None = _option(
        "assign", _assigned, None, 'queues to read instead of whole topics: `{"orders":{"broker-a":[0,1]}}`'
    )
    starting_offsets: str | OffsetTable = _option(
        "startingOffsets",
        _place,
        "earliest",
        'where queues begin: `earliest`, `latest`, `{"orders":{"broker-a":{"0":23}}}` (-2 earliest, -1 latest)',
    )
    starting_ms: int | None = _option(
        "startingTimestamp", _time, None, "begin with messages stored at this time or later; ms or ISO text"
    )
    ending_offsets: str | OffsetTable = _option(
        "endingOffsets", _place, "latest", "where each queue ends, exclusive; as `startingOffsets`"
    )
    ending_ms: int | None = _option("endingTimestamp", _time, None, "end before messages stored at this time or later")
    fail_on_data_loss: bool = _option(
        "failOnDataLoss",
        _truth,
        True,
        "fail when offsets asked for are not there; else read the rest",
    )
    tag_filter: str = _option("tagFilter", _text, "*", "only messages with these tags: `a || b`")
    min_partitions: int | None = _option("minPartitions", _number(1), None, "split queues into at least so many tasks")
    max_partitions: int | None = _option(
        "maxPartitions",
        _number(1),
        None,
        "pack queues into at most so many tasks; default: two a CPU",
    )
    max_records: int | None = _option(
        "maxRecordsPerPartition", _number(1), None, "split queues so that no task has more offsets than this"
    )
    pull_batch: int = _option("pullBatchSize", _number(1), 32, "messages one pull asks for; the broker has limits too")
    arrow_rows: int = _option("arrowBatchRows", _number(1), 8192, "rows of an Arrow batch")
    arrow_bytes: int = _option(
        "arrowBatchBytes", _size, 8 << 20, "bytes of records after which a batch is closed early"
    )
    system_properties: bool = _option(
        "systemProperties", _truth, False, "let `properties` also hold what RocketMQ itself sets"
    )
    deadline_ms: int = _option(
        "deadlineMs", _number(1), 60_000, "how long a task tries to reach a broker before it fails"
    )
    group: str = _option("group", _text, "pyromq-spark", "the name brokers see; its offsets are not used")

    def __post_init__(self) -> None:
        if bool(self.subscribe) == bool(self.assign):
            raise UsageError("give option subscribe (topics) or option assign (queues), one of them")
        parse_tags(self.tag_filter)
        if self.min_partitions and self.max_partitions and self.min_partitions > self.max_partitions:
            raise UsageError(f"minPartitions {self.min_partitions} is more than maxPartitions {self.max_partitions}")


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the checked options. Raises `UsageError` naming option, value and what is allowed."""
    known = {f.metadata["name"].lower(): f for f in fields(ReadOptions)}
    values = {}
    for name, value in given.items():
        option = known.get(name.lower())
        if option is None:
            names = {key: f.metadata["name"] for key, f in known.items()}
            near = difflib.get_close_matches(name.lower(), names, n=1)
            hint = f"; did you mean {names[near[0]]}?" if near else f"; known are {', '.join(sorted(names.values()))}"
            raise UsageError(f"option {name!r} is unknown{hint}")
        values[option.name] = option.metadata["read"](option.metadata["name"], value)
    return ReadOptions(**values)


def documentation() -> str:
    """Return the options as a Markdown table."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for f in fields(ReadOptions):
        default = (
            "" if f.default in (None, ()) else str(f.default).lower() if isinstance(f.default, bool) else f.default
        )
        lines.append(f"| `{f.metadata['name']}` | {f'`{default}`' if default != '' else ''} | {f.metadata['doc']} |")
    return "\n".join(lines)
