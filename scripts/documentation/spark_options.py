"""The tables of Spark's options for pages, made from the declarations of options."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from pyromq.spark.options import CONNECTION_OPTIONS, declared


def documentation_of(options: type) -> str:
    """Return the documentation of the options of a dataclass as a Markdown table."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for each in declared(options):
        only = {"batch": " (batches only)", "stream": " (streams only)"}.get(each.metadata["only"] or "", "")
        lines.append(f"| `{each.metadata['name']}` | {_default(each)} | {each.metadata['doc']}{only} |")
    return "\n".join(lines)


def connection_documentation() -> str:
    """Return the documentation of the connection options as a Markdown table."""
    lines = ["| option | environment | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{each.variable}` | {each.doc} |" for name, each in CONNECTION_OPTIONS.items()]
    return "\n".join(lines)


def _default(each: Field[Any]) -> str:
    if each.default is None or each.default == ():
        return ""
    return f"`{str(each.default).lower() if isinstance(each.default, bool) else each.default}`"
