"""TLS of a listening port: who may come in plain, which certificate is shown, whose certificates are asked for.

No sockets here: `first_bytes.py` has them.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.net.tls.certificate_dates import SOON_DAYS, expiry_of_file, lifetime
from pyromq.net.tls.config import load_files, versions_of

logger = logger_of(__name__)

LOOK_SECONDS = 1.0  # how often, at most, files are looked at


class TlsMode(Enum):
    """Which connections a port takes. Source: RocketMQ 4.9.8, TlsMode."""

    DISABLED = "disabled"  # plain ones
    PERMISSIVE = "permissive"  # both: the first byte of a connection tells
    ENFORCING = "enforcing"  # TLS only


class ClientCertificates(Enum):
    """Whether clients show certificates of their own. Source: RocketMQ 4.9.8, TlsHelper.parseClientAuthMode."""

    NONE = "none"
    OPTIONAL = "optional"  # who shows one must show one that the authority signed
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsConfig:
    """How a port speaks TLS. Files are PEM, and read again when they change; connections that there are go on."""

    certificate: Path | str  # what the server shows: its own, then those between it and the authority
    key: Path | str | None = None  # None: in the certificate's file
    password: str | None = field(default=None, repr=False)  # of the key, if it has one
    mode: TlsMode = TlsMode.PERMISSIVE  # upstream's: clients move to TLS one by one
    client_certificates: ClientCertificates = ClientCertificates.NONE  # whether clients are asked for one
    authority: Path | str | None = None  # who signs clients' certificates
    handshake_seconds: float = 10.0  # from the first byte to the end of the handshake

    def __post_init__(self) -> None:
        if self.client_certificates is not ClientCertificates.NONE and self.authority is None:
            raise UsageError(
                f"client certificates ({self.client_certificates.value}) need the authority that signs them: "
                "tls.server.trustCertPath (authority)"
            )
        if not 0.01 <= self.handshake_seconds <= 3600:
            raise UsageError(f"handshake_seconds={self.handshake_seconds!r} is out of range: 0.01 to 3600")

    def context(self) -> ssl.SSLContext:
        """Return what a listening port needs. Raises `UsageError` naming a file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION  # the one way to make a server work for nothing again and again
        asked = self.client_certificates is not ClientCertificates.NONE
        load_files(
            context,
            authority=self.authority if asked else None,
            certificate=self.certificate,
            key=self.key,
            password=self.password,
        )
        if asked:
            required = self.client_certificates is ClientCertificates.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


class ServerContext:
    """The context of a port, made once, and again when a file changes.

    Files that cannot be used leave the last good ones in use, and are told once. Making one raises `UsageError`
    naming a file that cannot be used.
    """

    def __init__(self, config: ServerTlsConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._versions = self._look()
        self._looked = clock.monotonic()
        self._context = config.context()
        self._tell_expiry()

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        now = self._clock.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            versions = self._look()
            if versions != self._versions:
                self._versions = versions
                self._renew()
        return self._context

    def _look(self) -> tuple[object, ...]:
        return versions_of(self.config.certificate, self.config.key, self.config.authority)

    def _renew(self) -> None:
        try:
            self._context = self.config.context()
        except UsageError as error:
            logger.error("%s; new connections still get the certificate that was read before", error)  # noqa: TRY400
        else:
            logger.info("TLS certificate %s is read again: new connections get it", self.config.certificate)
            self._tell_expiry()

    def _tell_expiry(self) -> None:
        end = expiry_of_file(self.config.certificate)
        if end is not None and (left := end - self._clock.now_ms() / 1000) < SOON_DAYS * 86_400:
            logger.warning("TLS certificate %s %s", self.config.certificate, lifetime(left))
