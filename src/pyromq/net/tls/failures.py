"""Explains why connections with TLS failed, and what to do."""

from __future__ import annotations

import asyncio
import ssl

from pyromq.net.tls.tls_config import TlsConfig

PROBE_SECONDS = 3.0

_EXPIRED, _NOT_YET = 10, 9  # numbers of OpenSSL's X509_V_ERR_... for expired and not yet valid certificates
_OTHER_HOST = (62, 63, 64)
_SELF_SIGNED = 18

_PLAIN_PORT = "it accepts plain connections only, or is not a RocketMQ server; connect without TLS, or to another port"

# Ends of the reasons for alerts that servers send; the beginning differs between versions of OpenSSL and TLS.
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate: give one (TlsConfig.certificate)",
    "UNKNOWN_CA": "it does not trust the issuer of this client's certificate",
    "BAD_CERTIFICATE": "it refuses this client's certificate",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired",
    "HANDSHAKE_FAILURE": "it supports none of this client's TLS versions, or requires a client certificate",
    "PROTOCOL_VERSION": "it supports none of this client's TLS versions",
}


def refused_handshake(error: Exception, tls: TlsConfig) -> str:
    """Return the error text for a TLS handshake that failed at the client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error, tls)
    if isinstance(error, ssl.SSLError):
        return describe(error)
    return f"closed the connection in the TLS handshake: {_PLAIN_PORT}"


def describe(error: BaseException) -> str:
    """Return the error text for an exception that closed a connection."""
    if not isinstance(error, ssl.SSLError):
        return str(error)
    reason = error.reason or ""
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason or "HTTP_REQUEST" in reason:
        return f"does not answer in TLS: {_PLAIN_PORT}"
    for alert, text in _ALERTS.items():
        if reason.endswith(alert):
            return f"refuses the TLS handshake: {text}"
    return f"TLS failed: {reason or error}"


def closed_without_a_reply(tls: TlsConfig | None) -> str:
    """Return the error text for a connection that the server closed without sending a byte."""
    if tls is None:
        return "closed by the server without a reply: it may accept TLS connections only"
    return "closed by the server without a reply: it may require another client certificate (TlsConfig.certificate)"


def _unverified(error: ssl.SSLCertVerificationError, tls: TlsConfig) -> str:
    if error.verify_code == _EXPIRED:
        return "its certificate, or its issuer's, has expired"
    if error.verify_code == _NOT_YET:
        return "its certificate is not valid yet: check this machine's clock"
    if error.verify_code in _OTHER_HOST:
        text = error.verify_message.rstrip(".")
        return f"its certificate is for another host ({text}); TlsConfig.server_name and check_host help"
    trusted = (
        f"by {tls.authority}"
        if tls.authority is not None
        else "by an authority that this system trusts: give its authority"
    )
    signed = " (it is self-signed)" if error.verify_code == _SELF_SIGNED else ""
    return f"its certificate is not signed {trusted}{signed}"


async def speaks_tls(address: str) -> bool:
    """Return whether the server at `host:port` completes a TLS handshake.

    Nothing is verified, and no request is sent.
    """
    host, _, port = address.rpartition(":")
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=unverified)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.transport.abort()
    return True
