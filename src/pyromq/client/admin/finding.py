"""One finding of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: the checked server or topic (`name`), whether it is in order, the observation, and advice."""

    name: str
    ok: bool
    text: str
    advice: str = ""
