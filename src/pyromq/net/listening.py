"""How a listening socket ends."""

from __future__ import annotations

import asyncio

_ACCEPT_TURNS = 3  # of the loop, until a connection that was accepted has told its protocol


def stop_listening(listener: asyncio.Server) -> None:
    """Take no new connections from now on; the port is free two turns of the loop later. Idempotent.

    A connection accepted in this very turn gets its transport first: asyncio would forget it, unclosed.
    """
    loop = listener.get_loop()
    for each in listener.sockets:
        loop.remove_reader(each.fileno())
    loop.call_soon(listener.close)


async def all_accepted() -> None:
    """Return when connections accepted before `stop_listening` are known to their protocols, like the others."""
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
