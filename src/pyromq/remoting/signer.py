"""Signing requests: the seam for access keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Signer(Protocol):
    """Signs what a connection asks."""

    def sign(self, fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Return the fields to add to a request of these fields (as on the wire) and this body."""
