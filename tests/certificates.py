"""Certificates for tests: an authority, and what it signs, as PEM files in a folder."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Authority:
    """Signs certificates. `file` is what one trusts it by."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name=name)
        self.file = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def issue(
        self, name: str, *hosts: str, ends_in_days: float | None = None, password: str | None = None
    ) -> tuple[Path, Path]:
        """Return the files of a certificate for these hosts (127.0.0.1 and localhost where none is named) and its key.

        The same name again replaces the files.
        """
        ends = datetime.now(UTC) + timedelta(days=ends_in_days) if ends_in_days is not None else None
        begins = datetime.now(UTC) - timedelta(days=100) if ends is not None else None
        issued = self._authority.issue_cert(*hosts or ("127.0.0.1", "localhost"), not_before=begins, not_after=ends)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        lock = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        private = load_pem_private_key(issued.private_key_pem.bytes(), None)
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))  # Java reads no other form
        return certificate, key
