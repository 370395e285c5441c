"""The fields of every command's JSON output, as `json_fields.txt` records them: a field never vanishes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

RECORD = Path(__file__).with_name("json_fields.txt")
RARE = "?"  # ends the name of a field that is not in every output


def check_fields(path: Sequence[str], texts: Sequence[str]) -> None:
    """Check that the outputs of one command together have the recorded fields, and no field that is not recorded."""
    command = " ".join(path)
    fields = {field for text in texts for value in values_of(text) for field in fields_of(value)}
    recorded = recorded_fields().get(command, set())
    always = {field for field in recorded if not field.endswith(RARE)}
    new = {field for field in fields if not recorded & {field, field + RARE}}
    assert not always - fields, f"`pyromq {command} -o json` lost fields that UPGRADING.md promises to keep"
    assert not new, f"record the new fields in {RECORD.name}:\n{command}: {' '.join(sorted(recorded | new))}"


def recorded_fields() -> dict[str, set[str]]:
    """Return the recorded fields by command."""
    lines = (line.partition(":") for line in RECORD.read_text("utf-8").splitlines())
    return {command: set(fields.split()) for command, _, fields in lines}


def values_of(text: str) -> list[object]:
    """Return what a command printed: one value, or one a line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def fields_of(value: object, above: str = "") -> Iterator[str]:
    """Yield the names of all fields, each after the names of the fields that hold it. A path in a name is left out."""
    if isinstance(value, list):
        for each in value:
            yield from fields_of(each, above)
    elif isinstance(value, dict):
        for name, each in value.items():
            field = above + name.partition("/")[0].replace(" ", "_")
            yield field
            if name != "properties":  # a message's, which its sender names
                yield from fields_of(each, f"{field}.")
