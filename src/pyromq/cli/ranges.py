"""Command-line option types for numbers, folders, and text that may be empty.

Help and errors say the range of a number in words: `1 to 65,535`, `0 or more`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pyromq.cli.times import read_duration

UNLIMITED = 1 << 31  # from here on help does not show the upper limit: no user reaches it


class WholeNumber(click.IntRange):
    """Type of a whole number from `least` to `most`."""

    name = "n"

    def __init__(self, least: int, most: int | None = None) -> None:
        super().__init__(least, most)
        self.least, self.most = least, most
        self._range = f"{least:,} or more" if most is None or most >= UNLIMITED else f"{least:,} to {most:,}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number; write {self._range}", param, ctx)
        if number < self.least or (self.most is not None and number > self.most):
            self.fail(f"{number:,} is out of range; write {self._range}", param, ctx)
        return number

    def _describe_range(self) -> str:  # the text that click shows in help
        return self._range


class Seconds(click.FloatRange):
    """Type of a time from `least` to `most` seconds: a number of seconds, or a duration, for example `1.5m`."""

    name = "seconds"

    def __init__(self, least: float, most: float) -> None:
        super().__init__(least, most)
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value) if isinstance(value, int | float) else read_duration(value)
        except click.BadParameter as error:
            self.fail(error.message, param, ctx)
        if not self.least <= seconds <= self.most:
            self.fail(f"{value} is out of range; write {self._describe_range()} seconds", param, ctx)
        return seconds

    def _describe_range(self) -> str:  # the text that click shows in help
        return f"{self.least:,} to {self.most:,}"


class AnyText(click.types.StringParamType):
    """Type of a string that may be empty. `Command` refuses empty values of all other strings."""


ANY_TEXT = AnyText()


class Folder(click.Path):
    """Type of a folder that is created if it is missing. An empty name is refused: it would mean the current folder."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail("the name of the folder is empty; write . for the current folder", param, ctx)
        return super().convert(value, param, ctx)


def count_advice(command: click.Command, number: str) -> str:
    """Return the end of an error for a number that is meant as a count: `-n 5`, `-5`. Empty if no option takes one."""
    counts = (each.opts for each in command.params if each.name in ("count", "last"))
    written = " or ".join(f"{letter} {number} ({name})" for letter, name, *_ in counts)
    return f"; for a number of messages write {written}" if written else ""


def read_rate(text: str) -> float:
    """Return a number of messages a second, above 0."""
    try:
        if 0 < (rate := float(text)) < UNLIMITED:
            return rate
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not a rate; write a number of messages a second, above 0")
