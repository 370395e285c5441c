"""Joins numbers and nouns for texts that people read."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return number and noun, for example `1 message` or `2,000 messages`. `many` is an irregular plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
