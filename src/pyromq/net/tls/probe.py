"""Finding out what a port speaks, for who asks why a connection fails."""

from __future__ import annotations

import asyncio
import ssl

PROBE_SECONDS = 3.0


async def speaks_tls(address: str) -> bool:
    """Return whether what listens at `host:port` finishes a TLS handshake, whoever it is; nothing is sent to it."""
    host, _, port = address.rpartition(":")
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=anybody)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.transport.abort()
    return True
