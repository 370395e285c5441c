"""A client of another language: requests in bytes, to one address, whatever the routes say."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import FrameSplitter, Response, decode_response, encode_request, frame_words
from pyromq.remoting.header import Header
from pyromq.remoting.signer import Signer


class OtherClient:
    """A client of another language at one address, which it keeps. It connects again if the connection was closed."""

    def __init__(self, address: str, *, signer: Signer | None = None, language: str = "JAVA") -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._opaque = 0
        self._signer = signer
        self._language = language
        self.closed = 0  # how often the connection was closed by the broker

    def frame(self, header: Header, body: bytes = b"", flag: int = 0) -> bytes:
        self._opaque += 1
        frame = encode_request(header, body, opaque=self._opaque, flag=flag, signer=self._signer)
        ((_, text, _),) = FrameSplitter().split(frame)
        text = text.replace(b'"language":"PYTHON"', b'"language":"%b"' % self._language.encode())
        return frame_words(0, len(text), len(body)) + text + body

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        return self._streams

    async def tell(self, header: Header) -> None:
        _, writer = await self.streams()
        writer.write(self.frame(header, flag=ONE_WAY))

    async def ask_all(self, *headers: Header, body: bytes = b"") -> list[Response]:
        """Send requests at once and return the responses in the requests' order."""
        while True:
            reader, writer = await self.streams()
            first = self._opaque + 1
            writer.write(b"".join(self.frame(header, body) for header in headers))
            answers: dict[int, Response] = {}
            splitter = FrameSplitter()
            while len(answers) < len(headers):
                try:
                    data = await reader.read(1 << 16)
                except ConnectionResetError:
                    data = b""
                if not data:
                    break
                for frame in splitter.split(data):
                    response = decode_response(*frame)
                    assert isinstance(response, Response)
                    answers[response.opaque] = response
            else:
                return [answers[first + index] for index in range(len(headers))]
            self.closed += 1
            await self.close()

    async def ask(self, header: Header, body: bytes = b"") -> Response:
        return (await self.ask_all(header, body=body))[0]

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with suppress(OSError):
                await self._streams[1].wait_closed()
            self._streams = None


@asynccontextmanager
async def client_at(address: str, **settings):
    client = OtherClient(address, **settings)
    try:
        yield client
    finally:
        await client.close()
