"""TLS of who connects: whose certificates are trusted, and what we show of ourselves."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pyromq.errors import UsageError
from pyromq.logs import logger_of

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """How a client encrypts, and how it knows that a server is the right one.

    Files are PEM. They are read when a connection is made, again where they have changed since.
    """

    authority: Path | str | None = None  # whose certificates are trusted; None: whom the system trusts
    certificate: Path | str | None = None  # our own, for servers that ask for one
    key: Path | str | None = None  # of our certificate; None: in the certificate's file
    password: str | None = field(default=None, repr=False)  # of the key, if it has one
    # False: anybody may be the server, read and change everything. For a trial with a certificate nobody signed.
    verify: bool = True
    # False: any certificate that the authority signed will do, whatever it names. Brokers tell clients addresses, and
    # certificates may name none of them; then who has one broker's key can play all of them.
    check_host: bool = True
    server_name: str | None = None  # what certificates must name; None: the host that is connected to

    def context(self) -> ssl.SSLContext:
        """Return what a connection needs, the same one for equal settings. Raises `UsageError` naming a bad file."""
        return _context(self, versions_of(self.authority, self.certificate, self.key))


@lru_cache(maxsize=32)
def _context(config: TlsConfig, _: object) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # A certificate in the authority's file is trusted for itself: it need not be an authority's.
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
    logger.warning("TLS without verification (verify=False): whoever is in between can read and change everything")


def versions_of(*files: Path | str | None) -> tuple[object, ...]:
    """Return what changes when one of the files does."""
    return tuple(_version(Path(file)) for file in files if file is not None)


def _version(file: Path) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def load_files(
    context: ssl.SSLContext,
    *,
    authority: Path | str | None,
    certificate: Path | str | None,
    key: Path | str | None,
    password: str | None,
) -> None:
    """Read PEM files into a context. Raises `UsageError` naming the file that cannot be used, and why."""
    try:
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"TLS authority {authority} cannot be used: {_reason(error)}") from error
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, password or _no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        files = f"{certificate}" + (f" with key {key}" if key else "")
        raise UsageError(f"TLS certificate {files} cannot be used: {_reason(error, bool(password))}") from error


def _no_password() -> str:
    """Without this OpenSSL would ask on the terminal."""
    raise ValueError("the key has a password, and none is given")


def _reason(error: Exception, has_password: bool = False) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key is not this certificate's"
    if isinstance(error, ssl.SSLError):  # OpenSSL tells no more of either
        return "no PEM file" + (", or the password of the key is wrong" if has_password else "")
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
