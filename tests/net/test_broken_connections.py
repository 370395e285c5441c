"""A peer sends what is not a frame: the requests before it are answered, what comes behind it is not looked at."""

import asyncio

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.net import connection
from pyromq.remoting.command import Reply, encode_request, frame_words
from pyromq.remoting.headers import MaxOffset, MinOffset

NO_FRAMES = [
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="text"),
    pytest.param(frame_words(0, 1000, -980) + bytes(16), id="header beyond the frame"),
    pytest.param(frame_words(0, 5, 0) + b"{{{{{", id="no JSON"),
    pytest.param(frame_words(9, 2, 0) + b"{}", id="unknown serialization"),
]


def asked(header, opaque):
    return encode_request(header, b"", opaque=opaque, flag=0)


async def frames(reader):
    """Return how many answers come before the end."""
    count = 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while size := await reader.read(4):
            size += await reader.readexactly(4 - len(size))
            await reader.readexactly(int.from_bytes(size, "big"))
            count += 1
    return count


@pytest.mark.parametrize("broken", NO_FRAMES)
async def test_requests_ahead_of_a_broken_frame_are_answered(server, offsets, until, broken):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    at_once, later = MaxOffset(topic="t", queue_id=1), MinOffset(topic="t", queue_id=1)
    writer.write(asked(at_once, 1) + asked(later, 2) + asked(at_once, 3) + broken)
    await until(lambda: offsets.waiting)
    writer.write(asked(at_once, 4) * 100)
    await writer.drain()
    offsets.waiting[0].set_result(Reply())
    assert await frames(reader) == 3
    assert offsets.asked == 2
    writer.close()
    await until(lambda: not server.sessions)


async def test_answers_reach_a_peer_that_is_still_sending(server):
    """A socket that is closed with bytes unread is reset: answers on their way are lost."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(asked(MaxOffset(topic="t", queue_id=1), 1) + b"no frame " + bytes(4 << 20))
    await writer.drain()
    assert await frames(reader) == 1
    writer.close()


async def test_a_broken_connection_ends_although_an_answer_never_comes(server, offsets, until, monkeypatch):
    monkeypatch.setattr(connection, "DRAIN_SECONDS", 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(asked(MinOffset(topic="t", queue_id=1), 1) + b"this is not a frame")
    assert await frames(reader) == 0
    await until(lambda: not server.sessions)
    writer.close()
