"""Reads the expiry of a certificate from its bytes.

    SEQUENCE { SEQUENCE { [0] version?  INTEGER serial  SEQUENCE algorithm  SEQUENCE issuer
                          SEQUENCE { not before  not after } ... } ... }                       RFC 5280, 4.1

Python's standard library returns the expiry only for a verified peer certificate, not for other certificates or files.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

SOON_DAYS = 14  # a certificate that expires within this time is logged: enough to get a new one over holidays

_VERSION, _UTC_TIME = 0xA0, 0x17


def expiry_of_file(certificate: Path | str) -> float | None:
    """Return when the first certificate in a PEM file expires, in s since 1970; None if the file cannot be read."""
    try:
        text = Path(certificate).read_text("ascii", "replace")
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        first = text[text.index(begin) : text.index(end) + len(end)]
        return expiry(ssl.PEM_cert_to_DER_cert(first))
    except (OSError, ValueError):
        return None


def expiry(der: bytes) -> float | None:
    """Return when a certificate (DER) expires, in seconds since 1970; None if the expiry cannot be read."""
    try:
        certificate = _content(der, 0)[1]
        fields = _content(certificate, 0)[1]
        tag, _, at = _content(fields, 0)
        if tag == _VERSION:
            _, _, at = _content(fields, at)  # skips the serial number
        for _ in range(2):  # skips algorithm and issuer
            _, _, at = _content(fields, at)
        validity = _content(fields, at)[1]
        tag, text, _ = _content(validity, _content(validity, 0)[2])
        digits = text.decode("ascii")
        if tag == _UTC_TIME:  # the year has two digits, for 1950 to 2049
            digits = ("19" if digits[:2] >= "50" else "20") + digits
        return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError):
        return None


def lifetime(seconds: float) -> str:
    """Return a string for users that says when a certificate expires or expired."""
    days = int(abs(seconds) // 86_400)
    many = "1 day" if days == 1 else f"{days} days"
    if seconds < 0:
        return f"expired {many} ago" if days else "expired today"
    return f"expires in {many}" if days else "expires today"


def _content(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return tag and content of the DER value at a position, and the position of the next value."""
    tag, size = data[at], data[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[at : at + count], "big")
        at += count
    return tag, data[at : at + size], at + size
