"""A plain connection to a broker, which sees the order of replies."""

import asyncio
import contextlib

from tests.broker.headers import send_header

from pyromq.remoting.command import JSON, FrameSplitter, decode_response, encode_request
from pyromq.remoting.headers import MaxOffset

FENCE = 1 << 20


class Peer:
    """One plain connection."""

    def __init__(self, reader, writer, serialization=JSON):
        self.reader, self.writer = reader, writer
        self.serialization = serialization
        self.replies = {}
        self._splitter = FrameSplitter()
        self._fences = FENCE

    def send(self, *opaques, properties="", flag=0):
        frames = [
            encode_request(
                send_header(properties), b"x" * 100, opaque=opaque, flag=flag, serialization=self.serialization
            )
            for opaque in opaques
        ]
        self.writer.write(b"".join(frames))

    async def seen(self):
        """Return the replies that came before that to one more request, by opaque."""
        self._fences += 1
        self.writer.write(encode_request(MaxOffset(topic="orders", queue_id=0), b"", opaque=self._fences, flag=0))
        while self._fences not in self.replies:
            await self._read()
        return {opaque: reply for opaque, reply in self.replies.items() if opaque < FENCE}

    async def reply(self, opaque):
        while opaque not in self.replies:
            await self._read()
        return self.replies[opaque]

    async def rest(self):
        """Return the replies until the broker closes, by opaque."""
        while await self._read():
            pass
        return self.replies

    async def _read(self):
        data = await asyncio.wait_for(self.reader.read(1 << 20), 30)
        for frame in self._splitter.split(data):
            reply = decode_response(*frame)
            self.replies[reply.opaque] = reply
        return data


@contextlib.asynccontextmanager
async def connecting(broker):
    """Give a function that opens connections to a broker; they are closed at the end."""
    peers = []

    async def open_peer(serialization=JSON):
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", broker.port), serialization))
        return peers[-1]

    yield open_peer
    for peer in peers:
        peer.writer.close()
