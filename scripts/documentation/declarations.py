"""Reads settings from the code: the fields of a dataclass with what their comments say.

Imports the class and parses its file.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from pyromq.server_settings import Setting
from pyromq.server_settings import settings_of as declarations_of

# What a name's end says of its unit, longest first.
_UNITS = (
    ("_seconds", "s"),
    ("_percent", "%"),
    ("_hours", "h"),
    ("_bytes", "bytes"),
    ("_ms", "ms"),
    ("_us", "µs"),
)
_IN_SECONDS = ("ProducerConfig", "ConsumerConfig")  # whose docstrings say so of times without a unit
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class DocumentedSetting:
    """One field: its default as it is written down, its unit, and what the comment at it says.

    `file` is its name in properties files, `change` when a request changes it; both are empty without a declaration.
    """

    name: str
    type: str
    default: str
    unit: str
    reason: str
    file: str
    change: str


def settings_of(config: type) -> list[DocumentedSetting]:
    """Return the fields of a dataclass in their order."""
    path = inspect.getsourcefile(config)
    assert path is not None
    source = Path(path).read_text()
    comments = _comments(source, config.__name__)
    declared = declarations_of(config)
    found = []
    for field in fields(config):
        default = field.default if field.default is not MISSING else _made(field)
        unit = _unit(config.__name__, field.name, str(field.type))
        text = "must be given" if default is MISSING else _written(default, unit)
        setting = declared.get(field.name, Setting())
        file, change = (setting.name, setting.change.value) if setting.name else ("", "")
        reason = comments.get(field.name, "")
        found.append(DocumentedSetting(field.name, str(field.type), text, unit, reason, file, change))
    return found


def _made(field: Any) -> object:
    return field.default_factory() if field.default_factory is not MISSING else MISSING


def _unit(config: str, name: str, type_: str) -> str:
    if "int" not in type_ and "float" not in type_:
        return ""
    if name == "timeout" and config in _IN_SECONDS:
        return "s"
    return next((unit for end, unit in _UNITS if name.endswith(end)), "")


def _written(value: object, unit: str) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Path):
        return f"{str(value)!r}"
    if isinstance(value, int) and not isinstance(value, bool) and unit == "bytes":
        return _size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace(",", " ")
    if hasattr(value, "__dataclass_fields__"):
        return f"{type(value).__name__}()"
    if isinstance(value, frozenset):
        return ", ".join(map(str, sorted(value)))
    return repr(value)


def _size(value: int) -> str:
    for size, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if value >= size and value % size == 0:
            return f"{value} ({value // size} {name})"
    return str(value)


def _comments(source: str, class_name: str) -> dict[str, str]:
    """Return what stands beside a field and in the lines right above it, by its name."""
    (body,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    lines = source.splitlines()
    comments = {}
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        words = []
        above = node.lineno - 2
        while lines[above].strip().startswith("#"):
            words.insert(0, lines[above].strip().lstrip("# "))
            above -= 1
        assert node.end_lineno is not None and node.end_col_offset is not None
        # The parser counts bytes, which differ where a line has other letters than ASCII's.
        beside = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().partition("#")[2].strip()
        comments[node.target.id] = " ".join([*words, beside]).strip()
    return comments
