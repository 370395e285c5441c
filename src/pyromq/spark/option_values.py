"""Parsers of option values: strings, numbers, times, tables of offsets. Their `UsageError` has the allowed form."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from pyromq.errors import MQError, UsageError
from pyromq.message import MessageQueue

OffsetTable = dict[MessageQueue, int]  # an option has it as JSON: {"topic": {"broker": {"queue id": offset}}}

EARLIEST, LATEST = -2, -1  # special offsets in a table, as in Kafka's connector
# Limits of a time: March 1973 to November 5138; present times in seconds or us lie outside.
FIRST_MS, LAST_MS = 10**11, 10**14
INT, LONG = (1 << 31) - 1, (1 << 63) - 1  # largest values of Java's types, which requests and Spark have
_Offset = Annotated[int, msgspec.Meta(ge=EARLIEST, le=LONG)]
_QueueId = Annotated[int, msgspec.Meta(ge=0, le=INT)]


def time(name: str, value: str) -> int:
    """Parse a time and return it in ms since 1970.

    The value is such a number, or an ISO date and time with a zone. Spark passes no session time zone to a source, so
    the zone is required.
    """
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
    """Return the ms since 1970 unchanged. Raises `UsageError` for a number that must be in seconds or microseconds."""
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
    words = {"startingOffsets": "earliest, latest, group, or ", "endingOffsets": "latest or "}.get(name, "")
    hint = f'write {words}{{"orders":{{"broker-a":{{"0":23,"1":-2}}}}}}'
    return by_queue(_json(name, value, dict[str, dict[str, dict[_QueueId, _Offset]]], hint))


def time_table(name: str, value: str) -> OffsetTable:
    table = _offset_table(name, value)
    for ms in table.values():
        _moment(name, ms)
    return table


def by_queue(table: Mapping[str, Mapping[str, Mapping[Any, int]]]) -> dict[MessageQueue, int]:
    """Return the values of a table {topic: {broker: {queue id: value}}} as a dict with queues as keys."""
    return {
        MessageQueue(topic, broker, int(queue_id)): value
        for topic, brokers in table.items()
        for broker, queues in brokers.items()
        for queue_id, value in queues.items()
    }


def assigned(name: str, value: str) -> tuple[MessageQueue, ...]:
    hint = 'write {"orders":{"broker-a":[0,1]}}, lists of queues (option startingOffsets says where they begin)'
    some_ids = Annotated[list[_QueueId], msgspec.Meta(min_length=1)]
    some_brokers = Annotated[dict[str, some_ids], msgspec.Meta(min_length=1)]
    table = _json(name, value, Annotated[dict[str, some_brokers], msgspec.Meta(min_length=1)], hint)
    return tuple(
        MessageQueue(topic, broker, queue_id)
        for topic, brokers in table.items()
        for broker, queue_ids in brokers.items()
        for queue_id in queue_ids
    )


def _json(name: str, value: str, form: Any, hint: str) -> Any:
    try:
        return msgspec.json.decode(value, type=form)
    except msgspec.MsgspecError:
        raise UsageError(f"option {name} is {value!r}; {hint}") from None


def not_blank(name: str, value: str) -> str:
    if not value.strip():
        raise UsageError(f"option {name} is empty; give a value, or leave the option out")
    return value.strip()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a wrong name: the most similar name in `known`, ignoring case, else all names in `known`."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"did you mean {by_lower[near[0]]}?"
    return f"known are {', '.join(by_lower[each] for each in sorted(by_lower))}"


def names(name: str, value: str) -> tuple[str, ...]:
    """Parse a list of names separated by commas; a repeated name counts once.

    Raises `UsageError` for a list without a name.
    """
    found = tuple(dict.fromkeys(listed(value)))
    if not found:
        raise UsageError(f"option {name} is {value!r}, which has no name; write names separated by commas")
    return found


def listed(value: str, separator: str = ",") -> list[str]:
    """Return the parts of a string without blanks around them. Empty parts are left out."""
    return [each for part in value.split(separator) if (each := part.strip())]


def check_value(setting: str, value: str, check: Callable[[str], object], part: str | None = None) -> None:
    """Call `check` with a setting's value, or with a `part` of the value.

    The error of `check` gets the value and the setting's name, for example `option group`.
    """
    try:
        check(value if part is None else part)
    except MQError as error:
        raise type(error)(f"{setting} is {value!r:.150}: {error}") from error


def truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"option {name} is {value!r}; write true or false")
    return value.lower() == "true"


def number(minimum: int, maximum: int = INT) -> Callable[[str, str], int]:
    """Return a parser of whole numbers from `minimum` to `maximum`."""

    def read(name: str, value: str) -> int:
        if not value.isdecimal() or not minimum <= int(value) <= maximum:
            raise UsageError(f"option {name} is {value!r:.150}; write a whole number from {minimum} to {maximum}")
        return int(value)

    return read


def size(minimum: int, maximum: int = INT) -> Callable[[str, str], int]:
    """Return a parser of sizes in bytes, from `minimum` to `maximum`: `8388608`, `8m` or `512k`."""

    def read(name: str, value: str) -> int:
        unit = {"k": 1 << 10, "m": 1 << 20}.get(value[-1:].lower(), 1)
        digits = value if unit == 1 else value[:-1]
        if not digits.isdecimal() or not minimum <= int(digits) * unit <= maximum:
            wanted = f"bytes from {minimum} to {maximum}, for example 1048576, 512k or 1m"
            raise UsageError(f"option {name} is {value!r:.150}; write {wanted}")
        return int(digits) * unit

    return read


def milliseconds(minimum: int) -> Callable[[str, str], int]:
    """Return a parser of durations that returns ms, at least `minimum`: `15m`, `5s`, `500ms`, or a number of ms."""

    def read(name: str, value: str) -> int:
        found = re.fullmatch(r"(\d+) ?(ms|s|m|h|)", value)
        time = int(found[1]) * {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[found[2]] if found else None
        if time is None or not minimum <= time <= INT:
            raise UsageError(f"option {name} is {value!r:.150}; write 500ms, 5s or 15m, at most 24 days (576h)")
        return time

    return read


def words(*allowed: str) -> Callable[[str, str], str]:
    """Return a parser that accepts one of these words, ignoring case, and returns the word as spelled here."""
    by_lower = {word.lower(): word for word in allowed}

    def read(name: str, value: str) -> str:
        if value.lower() not in by_lower:
            raise UsageError(f"option {name} is {value!r}; write {' or '.join(allowed)}")
        return by_lower[value.lower()]

    return read
