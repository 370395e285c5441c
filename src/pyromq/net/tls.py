"""TLS of connections: one set of files for a server, for a client, or for both."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from pyromq.errors import UsageError


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Which certificates to show and to trust.

    A server needs `certificate` and `key`, PEM files. A client needs `authority` where the server's certificate is not
    signed by one that the system trusts; it checks that the certificate names the host it connects to.
    """

    certificate: Path | None = None
    key: Path | None = None  # None: in the certificate's file
    authority: Path | None = None  # whose certificates are trusted; a server with one asks clients for theirs

    def server_context(self) -> ssl.SSLContext:
        """Return what a listening port needs. Raises `UsageError` naming a file that cannot be used."""
        if self.certificate is None:
            raise UsageError("TLS at a server needs a certificate: set TlsConfig.certificate, and key if it is apart")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return what a connecting client needs. Raises `UsageError` naming a file that cannot be used."""
        context = ssl.create_default_context()
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            if self.authority is not None:
                context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"TLS authority {self.authority} cannot be used: {_reason(error)}") from error
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = f"{self.certificate}" + (f" with key {self.key}" if self.key else "")
            raise UsageError(f"TLS certificate {files} cannot be used: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return error.strerror or getattr(error, "reason", None) or "no PEM file"
