"""The examples that `--help` shows. `examples.txt` has them: one a line, the most used ones of a command first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SHOWN = 3
_ARGUMENTS = re.compile(r"\bpyromq (?:--context \w+ )?(.*)")


@cache
def examples() -> dict[str, tuple[str, ...]]:
    """Return all examples in the order of the file, each with the words after `pyromq`."""
    text = Path(__file__).with_name("examples.txt").read_text("utf-8")
    found = ((line, _ARGUMENTS.search(line)) for line in text.splitlines() if line)
    return {line: tuple(match[1].split()) for line, match in found if match}


def examples_of(path: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return the examples of the command at `path`, which is a group if it has `commands`.

    A group without own examples has the first one of each of its first commands, then further ones of these.
    """
    length = len(path)
    below = {line: words[length:] for line, words in examples().items() if words[:length] == tuple(path)}
    if not path:
        return [*below][:SHOWN]
    own = [line for line, words in below.items() if not (words and words[0] in commands)]
    first = {words[0]: line for line, words in reversed(below.items()) if words and words[0] in commands}
    return own[:SHOWN] or sorted(below, key=lambda line: line not in first.values())[:SHOWN]
