"""Checks of the values of job settings, and parsers of settings that have a syntax of their own. No Spark here.

A check is called with the name and the value of a setting, and raises `UsageError` for a wrong value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pyromq.errors import UsageError
from pyromq.names import check_group, check_topic
from pyromq.spark.option_values import check_value, listed

Check = Callable[[str, Any], object]

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")
_UNITS = {
    name: unit
    for unit, names in {
        "milliseconds": "ms millisecond milliseconds",
        "seconds": "s sec second seconds",
        "minutes": "m min minute minutes",
        "hours": "h hour hours",
        "days": "d day days",
        "weeks": "w week weeks",
    }.items()
    for name in names.split()
}
_MASTER = re.compile(  # Source: Spark 4, SparkMasterRegex
    r"yarn|local(-cluster\[ *\d+ *(, *\d+ *){2}\]|\[(\*|[1-9]\d*)( *, *\d+)?\])?|spark://[^,/]+:\d+(,[^,/]+:\d+)*"
)


def pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Parse strings of the form NAME=VALUE to a dict.

    Raises `UsageError` for a string of another form, and for a name that is given twice.
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = (part.strip() for part in each.partition("="))
        if not equals or not name:
            raise UsageError(f"{each!r:.150} is not of the form NAME=VALUE")
        if name.lower() in map(str.lower, found):
            raise UsageError(f"{name} is given twice; give one value")
        found[name] = value
    return found


def spark_interval(setting: str, value: str) -> str:
    """Return a duration in Spark's form: `10 seconds` for `10s`, `10 sec` and `10 seconds`. Raises `UsageError`."""
    parts = re.fullmatch(r"(?:\d+ ?[a-z]+ ?)+", value.strip())
    found = [(number, _UNITS.get(unit)) for number, unit in re.findall(r"(\d+) ?([a-z]+)", value)]
    if not parts or not all(unit for _, unit in found):
        raise UsageError(f"setting {setting} is {value!r}; write a duration: 500ms, 10s, 5m, 1h, 2d or 10 seconds")
    return " ".join(f"{number} {unit}" for number, unit in found)


def check_moment(name: str, value: str) -> None:
    """Refuse a string that is neither empty nor a timestamp that Spark accepts."""
    try:
        if not value or (_MOMENT.fullmatch(value) and datetime.fromisoformat(value)):
            return
    except ValueError:  # a date that does not exist, for example the 31st of February
        pass
    raise UsageError(f"setting {name} is {value!r}; write a time: 2026-01-31, or '2026-01-31 12:00:00' (UTC)")


def check_order(since: str, until: str) -> None:
    """Raise `UsageError` if no message can be stored between these times."""
    if since and until and in_utc(since) >= in_utc(until):
        raise UsageError(
            f"setting since is {since!r}, which is not before setting until, {until!r}; correct one of them"
        )


def in_utc(value: str) -> datetime:
    """Return the time in setting since or until. A time without a zone is in UTC."""
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def check_span(name: str, value: str) -> None:
    """Refuse a string that is not a duration above 0."""
    if not re.search("[1-9]", spark_interval(name, value)):
        raise UsageError(f"setting {name} is {value!r}; write a duration above 0: 500ms, 10s, 5m, 1h or 2d")


def check_file(name: str, file: str) -> None:
    """Refuse a file whose folder does not exist: the job writes the file only after a batch, which may take hours."""
    if file and not (folder := Path(file).parent).is_dir():
        raise UsageError(f"setting {name} is {file}, and there is no folder {folder}; make it first")
    if file and Path(file).is_dir():
        raise UsageError(f"setting {name} is {file}, which is a folder; name a file")


def check_folder(name: str, place: str) -> None:
    """Refuse a folder to write whose path has a file in it. Spark would replace the file, or fail in its tasks."""
    path = local_path(place)
    if place and path is not None and (file := next(filter(Path.is_file, (path, *path.parents)), None)) is not None:
        raise UsageError(f"setting {name} is {place}, and {file} is a file; name a folder")


def local_path(place: str) -> Path | None:
    """Return the path of a folder on this machine; None for the URI of another file system."""
    if re.match("file:/", place):
        return Path(re.sub("^file:/+", "/", place)).absolute()
    return None if "://" in place else Path(place).absolute()


def check_different(kind: str, **places: str) -> None:
    """Raise `UsageError` if two settings name the same file or folder."""
    names: dict[str, str] = {}
    for name, place in places.items():
        if place and (other := names.setdefault(_normal(place), name)) != name:
            raise UsageError(f"setting {other} and setting {name} are the same {kind}, {place}; give two {kind}s")


def check_outside(outer: tuple[str, str], inner: tuple[str, str], *, is_replaced: bool = False) -> None:
    """Raise `UsageError` if a setting names a folder inside the folder of another setting.

    Arguments are names and values of settings. Spark skips inner folders whose names begin with `_` or `.`, but a job
    that replaces the outer folder deletes them.
    """
    (name, folder), (other, place) = outer, inner
    if not folder or not place:
        return
    check_different("folder", **{name: folder, other: place})
    rest = _normal(place).removeprefix(f"{_normal(folder)}/")
    skipped = not is_replaced and any(part[:1] in ("_", ".") for part in rest.split("/"))
    if rest != _normal(place) and not skipped:
        raise UsageError(
            f"setting {other} is {place}, inside the folder of setting {name}, {folder}; give another folder"
        )


def _normal(place: str) -> str:
    path = local_path(place)
    return place.rstrip("/") if path is None else path.resolve().as_posix()


def at_least(minimum: int) -> Check:
    """Return a check of whole numbers from `minimum` on."""

    def check(name: str, value: int) -> None:
        if value < minimum:
            raise UsageError(f"setting {name} is {value}; write a whole number from {minimum} on")

    return check


def one_of(*words: str) -> Check:
    """Return a check that accepts only these words."""

    def check(name: str, value: str) -> None:
        if value not in words:
            raise UsageError(f"setting {name} is {value!r}; write {' or '.join(words)}")

    return check


def _each_by(check: Callable[[str], object]) -> Check:
    """Return a check of names that are separated by commas. The empty string has none."""

    def check_each(name: str, value: str) -> None:
        for each in listed(value):
            check_value(f"setting {name}", value, check, each)

    return check_each


def _one_by(check: Callable[[str], object]) -> Check:
    """Return a check of one name. The empty string is accepted."""

    def check_one(name: str, value: str) -> None:
        if value:
            check_value(f"setting {name}", value, check)

    return check_one


check_topics, check_groups = _each_by(check_topic), _each_by(check_group)
check_one_topic, check_one_group = _one_by(check_topic), _one_by(check_group)


def check_target(name: str, value: str) -> None:
    """Refuse the name of a topic that clients may not write to. The empty string names no topic."""
    from pyromq.spark.write.sink_options import check_writable  # imported late, as in `check_name_servers`

    if value:
        check_value(f"setting {name}", value, check_writable)


def check_name_servers(name: str, value: str) -> None:
    from pyromq.client.cluster.name_servers import addresses_of  # imported late: it doubles the time of `--help`

    if value:
        check_value(f"setting {name}", value, addresses_of)


def check_master(name: str, value: str) -> None:
    """Refuse a master that Spark would refuse after it has started. Other cluster managers than Spark's have a URI."""
    scheme, is_uri, _ = value.partition("://")
    near = get_close_matches(re.split(r"[\[:-]", scheme)[0], ["local", "yarn", "spark", "k8s"], n=1, cutoff=0.7)
    if _MASTER.fullmatch(value) or (is_uri and scheme != "spark" and near in ([], [scheme])):
        return
    hint = f"; did you mean {near[0]}?" if near and near[0] != scheme else ""
    raise UsageError(
        f"setting {name} is {value!r}; write local, local[N], local[*], yarn, spark://HOST:PORT or k8s://URL{hint}"
    )


def check_pairs(name: str, given: tuple[str, ...]) -> None:
    pairs(given)


def check_conf(name: str, given: tuple[str, ...]) -> None:
    """Refuse names that no setting of Spark or Hadoop has. Spark would ignore them."""
    for each in pairs(given):
        first, dot, rest = each.partition(".")
        if not dot:
            raise UsageError(f"setting {name} has {each!r}, and settings of Spark have dots in their names")
        if first != "spark" and get_close_matches(first.lower(), ["spark"], cutoff=0.75):
            raise UsageError(f"setting {name} has {each!r}, which Spark does not know; did you mean spark.{rest}?")
