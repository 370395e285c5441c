"""Makes a self-signed certificate for a proxy without certificate.

Clients of RocketMQ 5 use TLS by default, and trust every certificate.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyromq.errors import UsageError

VALID_DAYS = 3650
_LEAST_DAYS_LEFT = 30


def self_signed_certificate(folder: Path, now_ms: int) -> Path:
    """Return the file of a certificate and its key in a folder. Make the file if it is missing or expires soon.

    Raises `UsageError` that names a folder that cannot be written.
    """
    # Imported here: the import takes 40 ms, and only a proxy without certificate needs it.
    from cryptography import x509

    file = folder / "self-signed.pem"
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        ends = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
        if ends - now > timedelta(days=_LEAST_DAYS_LEFT):
            return file
    except (OSError, ValueError):
        pass
    content = _new_certificate(now)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"self-signed.{os.getpid()}"
        with open(made, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(content)
        made.replace(file)
    except OSError as error:
        raise UsageError(f"the self-signed certificate {file} cannot be written: {error.strerror}") from error
    return file


def _new_certificate(now: datetime) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pyromq proxy")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)
