"""TLS of a listening port: whether plain connections are accepted, and the certificates. No sockets here."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.net.tls.certificate_dates import SOON_DAYS, expiry_of_file, lifetime
from pyromq.net.tls.tls_config import load_files, versions_of

logger = logger_of(__name__)

CHECK_SECONDS = 1.0  # shortest time between checks whether certificate files have changed


class TlsMode(Enum):
    """Which connections a port accepts: plain, TLS, or both. Source: RocketMQ 4.9.8, TlsMode."""

    DISABLED = "disabled"  # plain connections only
    PERMISSIVE = "permissive"  # both kinds: the first byte of a connection decides
    ENFORCING = "enforcing"  # TLS connections only


class ClientCertificates(Enum):
    """Whether clients must present certificates. Source: RocketMQ 4.9.8, TlsHelper.parseClientAuthMode."""

    NONE = "none"
    OPTIONAL = "optional"  # a certificate, if presented, must be signed by the authority
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsConfig:
    """TLS of a listening port. Files are PEM and are read again when they change; open connections are not affected."""

    certificate: Path | str  # file of the server's certificate, followed by intermediate certificates
    key: Path | str | None = None  # file of the certificate's key; None: in the certificate's file
    password: str | None = field(default=None, repr=False)  # password of the key; None: the key has no password
    # Which connections are accepted. Default as in RocketMQ: clients can switch to TLS one at a time.
    mode: TlsMode = TlsMode.PERMISSIVE
    client_certificates: ClientCertificates = ClientCertificates.NONE  # whether clients must present one
    authority: Path | str | None = None  # file of the authority that signs clients' certificates
    handshake_seconds: float = 10.0  # limit of time from the first byte to the end of the handshake
    application_protocols: tuple[str, ...] = ()  # protocols above TLS that the server offers (ALPN), for example h2

    def __post_init__(self) -> None:
        if self.client_certificates is not ClientCertificates.NONE and self.authority is None:
            raise UsageError(
                f"client certificates ({self.client_certificates.value}) need the authority that signs them: "
                "give its file with tls.server.trustCertPath (--tls-client-ca, authority)"
            )
        if not 0.01 <= self.handshake_seconds <= 3600:
            raise UsageError(f"handshake_seconds={self.handshake_seconds!r} is out of range: 0.01 to 3600")

    def context(self) -> ssl.SSLContext:
        """Return a new TLS context. Raises `UsageError` that names a file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # On some systems Python leaves the minimum TLS version to OpenSSL's configuration, which may not set any.
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
        # A client could keep the server's processor busy by endless renegotiation.
        context.options |= ssl.OP_NO_RENEGOTIATION
        asked = self.client_certificates is not ClientCertificates.NONE
        load_files(
            context,
            authority=self.authority if asked else None,
            certificate=self.certificate,
            key=self.key,
            password=self.password,
        )
        if self.application_protocols:
            context.set_alpn_protocols(list(self.application_protocols))
        if asked:
            required = self.client_certificates is ClientCertificates.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


class ServerContext:
    """The TLS context of a port, renewed when a certificate file changes.

    If a changed file cannot be used, the last good context stays, the error is logged once, and the file is tried again
    each second. The constructor raises `UsageError` that names a file that cannot be used.
    """

    def __init__(self, config: ServerTlsConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._versions = self._look()
        self._checked = clock.monotonic()
        self._context = config.context()
        self._fault = ""  # why the present files are not in use; empty if they are
        self._log_expiry()

    def current(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection."""
        now = self._clock.monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            versions = self._look()
            # `chown` may make a file usable, and leaves its version as it is.
            if versions != self._versions or self._fault:
                self._versions = versions
                self._renew()
        return self._context

    def renewing(self) -> ssl.SSLContext:
        """Return a TLS context for a listener that keeps one context: each handshake uses the newest certificate."""
        context = self.config.context()

        def use_newest(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self.current()

        context.sni_callback = use_newest
        return context

    def _look(self) -> tuple[object, ...]:
        return versions_of(self.config.certificate, self.config.key, self.config.authority)

    def _renew(self) -> None:
        try:
            self._context = self.config.context()
        except UsageError as error:
            if str(error) != self._fault:
                logger.error("%s; new connections still get the certificate that was read before", error)  # noqa: TRY400
            self._fault = str(error)
        else:
            self._fault = ""
            logger.info("TLS certificate %s is read again: new connections get it", self.config.certificate)
            self._log_expiry()

    def _log_expiry(self) -> None:
        end = expiry_of_file(self.config.certificate)
        if end is not None and (left := end - self._clock.now_ms() / 1000) < SOON_DAYS * 86_400:
            logger.warning("TLS certificate %s %s", self.config.certificate, lifetime(left))
