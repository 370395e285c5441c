"""Reads what an endpoint answers, as a scraper does."""

import asyncio
from typing import NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict
    body: str


async def ask(endpoint, request=b"GET /metrics HTTP/1.1\r\n\r\n"):
    """Send the bytes of a request and return the answer; None where there is none."""
    reader, writer = await asyncio.open_connection(endpoint.config.host, endpoint.port)
    try:
        writer.write(request)
        content = await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return None
    finally:
        writer.close()
    if not content:
        return None
    head, _, body = content.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return Answer(int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body.decode())


async def get(endpoint, path):
    return await ask(endpoint, f"GET {path} HTTP/1.1\r\nHost: me\r\n\r\n".encode())


def samples(text):
    """Return by name and labels, as they stand there, the values of a scrape."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, value in lines}
