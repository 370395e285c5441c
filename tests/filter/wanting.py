"""Filters for tests: of any two functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyromq.record import decode


@dataclass(frozen=True, eq=False)
class Wanted:
    accepts_code: Callable[[int], bool] | None = None
    accepts_record: Callable[[memoryview], bool] | None = None
    codes: frozenset[int] | None = None
    weight: int = 0


def with_body(*bodies: bytes) -> Wanted:
    """Wants records with one of these bodies, whatever their tags."""
    return Wanted(accepts_record=lambda record: decode(record).body in bodies)
