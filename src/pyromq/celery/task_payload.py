"""Reads the payload of kombu's messages: ETA and expiration."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from pyromq.errors import IllegalMessage
from pyromq.message import StoredMessage


def payload(message: StoredMessage) -> dict[str, Any] | None:
    """Return the kombu message in a body; None for a body that kombu has not made."""
    try:
        raw = message.json(dict)
        if isinstance(raw["properties"]["delivery_info"], dict) and isinstance(raw["headers"], dict):
            return raw
    except (IllegalMessage, KeyError, TypeError):
        pass
    return None


def eta_ms(message: dict[str, Any]) -> int | None:
    """Return a Celery task's ETA in ms since 1970. An ETA without a zone is UTC. None without an ETA."""
    eta = message["headers"].get("eta")
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def is_expired(message: dict[str, Any], born_ms: int) -> bool:
    """Return whether a message has expired. `expiration` is a text of milliseconds since the message's birth."""
    try:
        return int(message["properties"]["expiration"]) + born_ms <= time.time() * 1000
    except (KeyError, TypeError, ValueError):
        return False
