"""What is left of connections that are gone: nothing, and nothing for the collector of garbage either."""

import asyncio
import gc
import logging
import socket
import struct
import weakref

import pytest

from pyromq.errors import AccessDenied
from pyromq.net.server import Server
from pyromq.remoting.command import encode_request
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import MaxOffset, MinOffset

SOUND = encode_request(MaxOffset(topic="t", queue_id=1), b"", opaque=1, flag=0)
PARKED = encode_request(MinOffset(topic="t", queue_id=1), b"", opaque=2, flag=0)
NO_HEADER = SOUND.replace(b'{"code"', b"}{code]")
UNREADABLE = SOUND.replace(b"queueId", b"queueIx")
RESET = struct.pack("ii", 1, 0)
SENT = {
    "nothing": b"",
    "requests": SOUND * 3,
    "a request that waits": PARKED,
    "a request that cannot be read": SOUND + UNREADABLE,
    "no header": NO_HEADER,
    "requests, then no header": SOUND * 3 + NO_HEADER,
    "requests that cannot be read, then no header": UNREADABLE * 3 + NO_HEADER,
    "no header, then requests": NO_HEADER + SOUND * 3,
    "no frame": b"GET / HTTP/1.1\r\n\r\n",
    "requests, then no frame": SOUND * 3 + b"GET / HTTP/1.1\r\n\r\n",
    "a frame that is too large": b"\x7f\xff\xff\xff",
    "a part of a frame": SOUND[:20],
    "requests, then a part of a frame": SOUND * 3 + SOUND[:20],
}


class Refusing:
    """Refuses everything."""

    reads_fields = is_compiled = False

    def judge(self, call):
        return AccessDenied("not for you")


@pytest.fixture(params=["open to all", "closed to all"])
async def guarded(request, clock, offsets):
    guard = Refusing() if request.param == "closed to all" else None
    server = Server(Dispatcher(offsets, guard=guard), clock)
    await server.start()
    yield server
    for waiting in offsets.waiting:
        waiting.cancel()
    await server.close(drain_seconds=0)


@pytest.fixture
def uncollected():
    logging.disable()  # a captured record keeps the error
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("how", ["ended", "reset"])
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
async def test_a_connection_that_is_gone_leaves_nothing_for_the_collector(
    guarded, offsets, until, uncollected, sent, how
):
    alive = []
    for _ in range(2):
        _, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
        await until(lambda: guarded._connections)
        for connection in guarded._connections:
            accepted = connection._transport.get_extra_info("socket")
            alive += [weakref.ref(connection), weakref.ref(getattr(accepted, "_sock", accepted))]
        del connection, accepted
        writer.write(sent)
        await writer.drain()
        if how == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        await until(lambda: not guarded._connections)
        while offsets.waiting:
            offsets.waiting.pop().cancel()
    await until(lambda: not any(each() for each in alive))
