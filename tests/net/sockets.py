"""Connections whose kernel keeps little, so that what nobody reads stays with who sent it.

How much a socket takes by itself differs by machine (`tcp_rmem`: 6 MiB here, 32 MiB there), and a test of what a
server keeps would test the machine.
"""

import asyncio
import socket

# More than a few segments of loopback, 64 KiB each: a window below that makes both sides wait for each other.
RECEIVE_BYTES = 1 << 20


async def open_narrow(port, **options):
    """Do as `asyncio.open_connection` to a port of loopback, with a receive buffer that does not grow."""
    connected = narrow(socket.socket())
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=connected, **options)


def narrow(opened):
    """Keep the receive buffer of a socket, or of those that a listening one accepts, from growing, and return it."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return opened
