"""The word by which a producer ends a transaction."""

from __future__ import annotations

from enum import Enum


class Decision(Enum):
    """What becomes of a half message; the values are those of the wire. `UNKNOWN` lets the broker ask later."""

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0
