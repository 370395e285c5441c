"""How a producer ends a transaction."""

from __future__ import annotations

from enum import Enum


class Decision(Enum):
    """Commit or roll back a half message; `UNKNOWN` lets the broker check later. Values are those of the protocol."""

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0
