"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, whether it is as it should be, what was seen, and what to do about it."""

    name: str
    ok: bool
    text: str
    advice: str = ""
