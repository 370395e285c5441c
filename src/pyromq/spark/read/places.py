"""Parsers of the options that say where a read begins and ends: times, tables of offsets or times, lists of queues.

Each parser takes the option's name and text. It raises `UsageError` with the allowed form.
"""

from __future__ import annotations

import json
from datetime import datetime

from pyromq.errors import UsageError

# {"topic": {"broker": {"queue id": offset}}}, as the older connectors spell it
OffsetTable = dict[str, dict[str, dict[str, int]]]

EARLIEST, LATEST = -2, -1  # special offsets, as in Kafka's connector
FIRST_MS, LAST_MS = 10**11, 10**14  # March 1973 to November 5138: present times in seconds or us lie outside


def time(name: str, value: str) -> int:
    """Parse ms since 1970, or an ISO date and time with its zone: Spark passes no session time zone to a source."""
    if value.isdecimal():
        return _moment(name, int(value))
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise UsageError(f"option {name} is {value!r}; write ms since 1970 or 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise UsageError(
            f"option {name} is {value!r}, a time without a zone, and Spark passes no session time zone to a source; "
            "write 2026-01-31T12:00:00Z, 2026-01-31T13:00:00+01:00, or ms since 1970"
        )
    return int(moment.timestamp() * 1000)


def _moment(name: str, ms: int) -> int:
    """Return ms since 1970. Raises `UsageError` for a number that must be seconds or microseconds."""
    if ms == 0 or FIRST_MS <= ms <= LAST_MS:
        return ms
    unit, meant = ("seconds", ms * 1000) if ms < FIRST_MS else ("microseconds", ms // 1000)
    hint = f"; if these are {unit}, write {meant}" if FIRST_MS <= meant <= LAST_MS else ""
    when = "before 1973" if ms < FIRST_MS else "after 5138"
    raise UsageError(f"option {name} is {ms}, a time {when}; write ms since 1970{hint}")


def ending(name: str, value: str) -> str | OffsetTable:
    return "latest" if value.lower() == "latest" else _offset_table(name, value)


def beginning(name: str, value: str) -> str | OffsetTable:
    word = value.lower()
    return word if word in ("earliest", "latest", "group") else _offset_table(name, value)


def _offset_table(name: str, value: str) -> OffsetTable:
    example = '{"orders":{"broker-a":{"0":23,"1":-2}}}'
    try:
        return {
            topic: {
                broker: {str(int(queue)): _whole(offset) for queue, offset in queues.items()}
                for broker, queues in brokers.items()
            }
            for topic, brokers in json.loads(value).items()
        }
    except (ValueError, AttributeError, TypeError):
        words = {"startingOffsets": "earliest, latest, group, or ", "endingOffsets": "latest or "}.get(name, "")
        raise UsageError(f"option {name} is {value!r}; write {words}{example}") from None


def time_table(name: str, value: str) -> OffsetTable:
    table = _offset_table(name, value)
    for ms in by_queue(table).values():
        _moment(name, ms)
    return table


def by_queue(table: OffsetTable) -> dict[tuple[str, str, str], int]:
    """Return the table's values by topic, broker and queue."""
    return {
        (topic, broker, queue): value
        for topic, brokers in table.items()
        for broker, queues in brokers.items()
        for queue, value in queues.items()
    }


def _whole(value: object) -> int:
    if isinstance(value, float):
        raise ValueError(f"{value} is no whole number")
    return int(value)  # type: ignore[call-overload,no-any-return]  # other JSON values raise


def assigned(name: str, value: str) -> dict[str, dict[str, list[int]]]:
    example = '{"orders":{"broker-a":[0,1]}}'
    try:
        table = {
            topic: {broker: [_queue_id(each) for each in _list(queues)] for broker, queues in brokers.items()}
            for topic, brokers in json.loads(value).items()
        }
        if not table or not all(brokers and all(brokers.values()) for brokers in table.values()):
            raise ValueError("it names no queue")
        return table
    except (ValueError, AttributeError, TypeError):
        raise UsageError(
            f"option {name} is {value!r}; write {example}, lists of queues (where they begin is startingOffsets)"
        ) from None


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _queue_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no id of a queue")
    return value
