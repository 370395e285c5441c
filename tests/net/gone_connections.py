"""What an ended connection leaves in the process that served it."""

import asyncio
import gc
import socket

from tests.waiting import PATIENCE_SECONDS, until


async def nothing_is_left(address: tuple[str, int], sent: bytes) -> None:
    """Return when connections that sent some bytes and ended are gone, without the collector of garbage."""

    def connect() -> None:  # in a thread: an asyncio client would leave transports of its own
        with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    def transports() -> int:
        # By the type: `isinstance` fails at a weak proxy of an earlier test whose object is gone.
        return sum(issubclass(type(each), asyncio.Transport) for each in gc.get_objects())

    await asyncio.to_thread(connect)
    gc.collect()
    before = transports()
    gc.disable()
    try:
        for _ in range(3):
            await asyncio.to_thread(connect)
        await until(lambda: transports() <= before)  # those of earlier tests may go
    finally:
        gc.enable()
