"""Options as fields of a dataclass: declaration, parsing and documentation. No Spark here.

The metadata of a field has the option's `name`, `doc`, parser `read(name, value)`, and `only`: batch, stream, or None
for both. Spark passes option names in lower case; users write them as documented.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from pyromq.client.cluster.name_servers import addresses_of, default_namesrv
from pyromq.errors import MQError, UsageError
from pyromq.spark.connection_options import OPTION_NAMES, split
from pyromq.spark.foreign_options import meant_here

NAME_SERVERS = "namesrvAddr"
SYNONYMS = {"endpoints": NAME_SERVERS}  # RocketMQ 5's name


def documented(options: type) -> list[Field[Any]]:
    """Return the fields that are options."""
    return [each for each in fields(options) if each.metadata]


def names_of(options: type) -> list[str]:
    return [each.metadata["name"] for each in documented(options)]


def read_fields(
    options: type, given: Mapping[str, str], *, unknown: Callable[[str], str], mode: str | None = None
) -> dict[str, Any]:
    """Return the values of the given options by field, with `connecting`, the connection options.

    `unknown(name)` returns the error text for an unknown option. Raises `UsageError` naming option, value and allowed
    values.
    """
    connecting, given = split(given)
    known = {each.metadata["name"].lower(): each for each in documented(options)}
    found: dict[str, Any] = {"connecting": connecting}
    for name, value in _with_name_servers(given).items():
        declared = known.get(name.lower())
        if declared is None:
            raise UsageError(unknown(name))
        called, only = declared.metadata["name"], declared.metadata["only"]
        if mode and only not in (None, mode):
            raise UsageError(f"option {called} is for a {only}, this is a {mode}")
        found[declared.name] = declared.metadata["read"](called, value)
    return found


def _with_name_servers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without synonyms; the driver's name servers are the default."""
    found: dict[str, str] = {}
    for name, value in given.items():
        called = SYNONYMS.get(name.lower(), name)
        if called.lower() == NAME_SERVERS.lower():
            if NAME_SERVERS in found:
                raise UsageError(f"options {NAME_SERVERS} and endpoints are the same; give one of them")
            called = NAME_SERVERS
        found[called] = value
    if NAME_SERVERS not in found:
        addresses_of(None)  # raises naming the environment variable if that is wrong
        found[NAME_SERVERS] = default_namesrv()
    return found


def unknown_option(name: str, own: type, other: type, *, writes: bool) -> str:
    """Return the error text for an unknown option, with the option to use, the nearest name, or all names.

    `own` declares the options of this direction, a write or a read; `other` those of the other direction.
    """
    this, that = ("write", "read") if writes else ("read", "write")
    if (meant := meant_here(name, writes=writes)) is not None:
        return f"option {name!r} does not exist for a {this}: {meant}"
    others = {each.lower(): each for each in names_of(other)}
    if name.lower() in others:
        return f"option {others[name.lower()]} is for a {that}, this is a {this}"
    known = [*names_of(own), *OPTION_NAMES]
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(known, key=str.lower))}"
    return f"option {name!r} is unknown; {hint}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, ignoring case; None if none is similar."""
    known = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return known[near[0]] if near else None


def name_servers(name: str, value: str) -> str:
    """Parse addresses of name servers."""
    return checked(name, value.strip(), addresses_of)


def checked(name: str, value: str, check: Callable[[str], object]) -> str:
    """Return the value if `check` accepts it. Raises its error with the option's name and value added."""
    if not value:
        raise UsageError(f"option {name} is empty")
    try:
        check(value)
    except MQError as error:
        raise type(error)(f"option {name} is {value!r:.150}: {error}") from error
    return value


def documentation_of(options: type) -> str:
    """Return the options as a Markdown table."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for each in documented(options):
        only = {"batch": " (batches only)", "stream": " (streams only)"}.get(each.metadata["only"] or "", "")
        lines.append(f"| `{each.metadata['name']}` | {_default(each)} | {each.metadata['doc']}{only} |")
    return "\n".join(lines)


def _default(each: Field[Any]) -> str:
    if each.default is None or each.default == ():
        return ""
    return f"`{str(each.default).lower() if isinstance(each.default, bool) else each.default}`"
