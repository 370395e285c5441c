"""Declares settings of servers, one field each, with the name in properties files, the range and the reader.

Reads no files. The comment at a setting's field says what the setting is for; the reference documentation shows this
comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from pyromq.errors import UsageError
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of

logger = logger_of(__name__)


class Change(Enum):
    """When a changed setting takes effect, in the words of the documentation."""

    AT_ONCE = "at once"
    NEXT_START = "next start"
    NEVER = "file only"  # a request to change the setting is refused


def parse_number(text: str) -> int:
    """Parse a whole number as Java does. Raises `ValueError` with the allowed form."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        is_with_unit = re.fullmatch(r"[0-9.]+ *[A-Za-z]+", text)
        raise ValueError("write a whole number" + (", without a unit" if is_with_unit else ""))
    return int(text)


def parse_path(text: str) -> Path:
    """Parse a path. Raises `ValueError` for an empty string, which would mean the current folder."""
    if not text:
        raise ValueError("write a path")
    return Path(text)


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _write(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting, stored under key `setting` in the metadata of its field."""

    default: Any = None
    name: str | None = None  # name in properties files: RocketMQ's, else pyromq's; None: not settable by file
    range: tuple[int, int] | None = None  # least and greatest value
    change: Change = Change.NEVER
    read: Callable[[str], Any] = str  # parses the text in a file; raises `ValueError` with the allowed form
    write: Callable[[Any], str] = _write
    field: str = ""
    component: str = ""  # field of the server's configuration that has the declaring class; empty: the configuration
    old_names: tuple[str, ...] = ()  # names in files of the previous minor version; they work, with a warning

    @property
    def called(self) -> str:
        """The setting's name for error texts: the name in files with the field in brackets, or the field alone."""
        return f"{self.name} ({self.field})" if self.name else self.field


_PARSERS: dict[type, Callable[[str], Any]] = {bool: _parse_bool, int: parse_number}


def setting(default: Any, name: str | None = None, **declaration: Any) -> Any:
    """Return a dataclass field that declares a `Setting`.

    A default of type `bool`, `int` or `str` determines `read`.
    """
    declaration.setdefault("read", _PARSERS.get(type(default), str))
    return field(default=default, metadata={"setting": Setting(default, name, **declaration)})


@cache
def settings_of(config: type) -> dict[str, Setting]:
    """Return the settings that a dataclass declares, by field name."""
    return {f.name: replace(f.metadata["setting"], field=f.name) for f in fields(config) if "setting" in f.metadata}


def check_ranges(config: Any, whose: str = "") -> None:
    """Raise `UsageError` for the first setting outside its range; the error text begins with `whose`."""
    for each in settings_of(config.__class__).values():
        value = getattr(config, each.field)
        if each.range is None:
            continue
        least, most = each.range
        if not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{whose}{each.called} is {value!r}; it must be {least} to {most}")


def settings_by_name(config: type, **components: type) -> dict[str, Setting]:
    """Return the settings of a server and of its components, by their names in properties files, old ones too."""
    return {
        name: replace(each, component=component)
        for component, kind in {"": config, **components}.items()
        for each in settings_of(kind).values()
        if each.name
        for name in (each.name, *each.old_names)
    }


def read_settings(settings: Mapping[str, Setting], properties: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Parse properties; return the values by component, then by field. Names not in `settings` are skipped.

    Raises `UsageError` naming the property and the value that cannot be parsed.
    """
    values: dict[str, dict[str, Any]] = {}
    for name, text in properties.items():
        if name in settings:
            each = settings[name]
            if name != each.name:
                logger.warning("setting %s is now called %s; the old name ends with the next version", name, each.name)
            try:
                values.setdefault(each.component, {})[each.field] = each.read(text.strip())
            except ValueError as error:
                raise UsageError(f"property {name} is '{excerpt(text)}': {error}") from error
    return values


def write_settings(settings: Mapping[str, Setting], components: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a server's components as properties, by name.

    Old names and settings with value None are left out.
    """
    values = {
        name: (each, getattr(components[each.component], each.field))
        for name, each in settings.items()
        if name == each.name
    }
    return {name: each.write(value) for name, (each, value) in values.items() if value is not None}
