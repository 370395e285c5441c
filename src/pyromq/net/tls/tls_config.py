"""The TLS of a client's connections, and the PEM files of clients and servers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.whole_file import version_of

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """How a client encrypts its connections and verifies servers.

    Files are PEM. The files are read when a connection is opened, and again after they change.
    """

    authority: Path | str | None = None  # file of trusted certificates; None: the system's trusted certificates
    certificate: Path | str | None = None  # the client's certificate, for servers that require one
    key: Path | str | None = None  # key of the client's certificate; None: in the certificate's file
    password: str | None = field(default=None, repr=False)  # password of the key; None: the key has no password
    # False: servers are not verified, so any peer can read and change everything. Only for trials.
    verify: bool = True
    # False: any certificate signed by the authority is accepted, whatever host the certificate names. For brokers whose
    # certificates do not name the advertised address; the owner of one broker's key can then act as any broker.
    check_host: bool = True
    server_name: str | None = None  # host that certificates must name; None: the host of the address

    def context(self) -> ssl.SSLContext:
        """Return the TLS context; equal settings give the same context.

        Raises `UsageError` that names a file that cannot be used.
        """
        return _context(self, versions_of(self.authority, self.certificate, self.key))


@lru_cache(maxsize=32)
def _context(config: TlsConfig, _: object) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # On some systems Python leaves the minimum TLS version to OpenSSL's configuration, which may not set any.
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    # Any certificate in the authority's file is trusted, even if the certificate is not that of an authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = config.verify and config.check_host
    if not config.verify:
        context.verify_mode = ssl.CERT_NONE
        _warn_unverified()
    files = {"authority": config.authority, "certificate": config.certificate, "key": config.key}
    load_files(context, **files, password=config.password)
    return context


@lru_cache(maxsize=1)
def _warn_unverified() -> None:
    logger.warning(
        "TLS without verification (verify=False): any host between client and server can read and change all data"
    )


def versions_of(*files: Path | str | None) -> tuple[object, ...]:
    """Return a value that changes when one of the files changes."""
    return tuple(version_of(Path(file)) for file in files if file is not None)


def load_files(
    context: ssl.SSLContext,
    *,
    authority: Path | str | None,
    certificate: Path | str | None,
    key: Path | str | None,
    password: str | None,
) -> None:
    """Load PEM files into a context. Raises `UsageError` that names the file and the reason."""
    try:
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        reason = "it has no certificate in PEM form" if isinstance(error, ssl.SSLError) else _reason(error)
        raise UsageError(f"TLS authority {authority} cannot be used: {reason}") from error
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, password or _no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        files = f"{certificate}" + (f" with key {key}" if key else "")
        reason = _reason(error, bool(password))
        if certificate is not None and key is None and isinstance(error, ssl.SSLError):
            content = Path(certificate).read_bytes()
            if b"BEGIN CERTIFICATE" in content and b"PRIVATE KEY" not in content:
                reason = "it has no private key; give the key's file too"
        raise UsageError(f"TLS certificate {files} cannot be used: {reason}") from error


def _no_password() -> str:
    """Refuse to return a password. Otherwise OpenSSL would ask for the password on the terminal."""
    raise ValueError("the key has a password, and none is given")


def _reason(error: Exception, has_password: bool = False) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key is not this certificate's; give the key that was made for it"
    if isinstance(error, ssl.SSLError):  # OpenSSL does not distinguish the two
        return "no PEM file" + (", or the password of the key is wrong" if has_password else "")
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
