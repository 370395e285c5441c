"""What has to be done for a transport of asyncio that has ended, so that nothing is left of it."""

from __future__ import annotations

import asyncio


def untie(transport: asyncio.BaseTransport) -> None:
    """Let an ended transport go at once: asyncio's keeps a method of its own, and would stay until it is collected."""
    getattr(transport, "__dict__", {}).pop("_read_ready_cb", None)
