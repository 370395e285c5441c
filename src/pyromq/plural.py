"""Numbers and nouns in texts for people."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return `1 message` or `2 messages`; `many` is an irregular plural."""
    return f"{count} {one if count == 1 else many or one + 's'}"
