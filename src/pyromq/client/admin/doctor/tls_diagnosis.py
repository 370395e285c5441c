"""What doctor tells of TLS: which side speaks it and which does not, who is not trusted, what expires."""

from __future__ import annotations

from pyromq.client.admin.doctor.finding import Finding
from pyromq.clock import Clock
from pyromq.errors import AnotherServer, ConnectionLost, MQError, TlsRefused
from pyromq.net.channel import Channel, connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.certificate_dates import SOON_DAYS, lifetime
from pyromq.net.tls.first_bytes import REFUSED
from pyromq.net.tls.probe import speaks_tls
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import BrokerState

WITH_TLS = "give the authority of its certificate: --tls-ca FILE (ConnectionConfig.tls), see docs/security.md"
WITHOUT_TLS = "leave out --tls and its like, and PYROMQ_TLS... of the environment; or let the server speak TLS"
OTHER_FILES = "look at --tls-ca, --tls-cert and --tls-key, at the server's certificate, and at docs/security.md"
_SECONDS = 3.0


async def explained(name: str, address: str, error: BaseException, clock: Clock) -> Finding | None:
    """Return what is wrong with TLS at an address that failed with this error; None if that is not it."""
    if isinstance(error, TlsRefused):
        if await _answers_plainly(address, clock):
            return Finding(name, False, "takes plain connections only", WITHOUT_TLS)
        return Finding(name, False, f"does not agree on TLS: {error}", OTHER_FILES)
    if isinstance(error, ConnectionLost) and not isinstance(error, AnotherServer) and await speaks_tls(address):
        return Finding(name, False, f"takes TLS connections only, or not ours: {error}", WITH_TLS)
    return None


def certificate(name: str, channel: Channel | None, clock: Clock) -> list[Finding]:
    """Return whether the certificate that a connection was made with expires soon; nothing of a plain one."""
    end = channel.certificate_expiry if channel is not None else None
    if end is None:
        return []
    left = end - clock.now_ms() / 1000
    advice = "renew it; servers read changed files within a second of the next connection"
    is_long = left >= SOON_DAYS * 86_400
    return [Finding(f"certificate of {name}", is_long, lifetime(left), "" if is_long else advice)]


async def _answers_plainly(address: str, clock: Clock) -> bool:
    try:
        channel = await connect(address, Dispatcher(), clock, connections=ConnectionConfig())
    except MQError:
        return False
    try:
        answer = await channel.call(BrokerState(), timeout=_SECONDS)  # whichever it is
    except MQError:
        return False
    finally:
        await channel.close()
    return answer.remark != REFUSED
