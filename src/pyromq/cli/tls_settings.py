"""TLS settings of the servers that `pyromq serve` runs, under RocketMQ's names.

RocketMQ reads these settings from a separate file or from system properties; here they are in the server's properties
file. Source: RocketMQ 4.9.8, TlsSystemConfig, TlsHelper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from pyromq.errors import UsageError
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode

Choice = TypeVar("Choice", bound=Enum)

MODE, CERTIFICATE, KEY = "tls.server.mode", "tls.server.certPath", "tls.server.keyPath"
PASSWORD, AUTHORITY = "tls.server.keyPassword", "tls.server.trustCertPath"
PASSWORD_VARIABLE = "PYROMQ_TLS_KEY_PASSWORD"  # environment variable with the password of the server's key
CLIENT_CERTIFICATES, CHECKS_CLIENTS = "tls.server.need.client.auth", "tls.server.authClient"
TEST_MODE = "tls.test.mode.enable"
SWITCHES = ("tls.enable", "useTLS")  # settings that switch on TLS for a broker's connections to name servers
CLIENT_CERTIFICATE, CLIENT_KEY, CLIENT_PASSWORD = "tls.client.certPath", "tls.client.keyPath", "tls.client.keyPassword"
CLIENT_AUTHORITY, CHECKS_SERVER = "tls.client.trustCertPath", "tls.client.authServer"

SERVER_NAMES = frozenset({MODE, CERTIFICATE, KEY, PASSWORD, AUTHORITY, CLIENT_CERTIFICATES, CHECKS_CLIENTS, TEST_MODE})
CLIENT_NAMES = frozenset({*SWITCHES, CLIENT_CERTIFICATE, CLIENT_KEY, CLIENT_PASSWORD, CLIENT_AUTHORITY, CHECKS_SERVER})


def server_tls(properties: Mapping[str, str]) -> ServerTlsConfig | None:
    """Return the TLS settings of a server's port; None if no certificate is set.

    Raises `UsageError` with the setting.
    """
    properties = {name: text.strip() for name, text in properties.items() if text.strip()}
    if _flag(properties, TEST_MODE, default=False):
        raise UsageError(
            f"{TEST_MODE}=true is not supported: clients could not verify a generated certificate; give one "
            f"with {CERTIFICATE} (--tls-cert)"
        )
    certificate = properties.get(CERTIFICATE)
    mode = _choice(properties, MODE, TlsMode.DISABLED if certificate is None else TlsMode.PERMISSIVE)
    if certificate is None:
        if mode is not TlsMode.DISABLED:
            raise UsageError(
                f"{MODE}={mode.value} needs a certificate: give it with {CERTIFICATE} and {KEY} (--tls-cert, --tls-key)"
            )
        if useless := next((name for name in (KEY, AUTHORITY) if name in properties), None):
            option = "--tls-key" if useless == KEY else "--tls-client-ca"
            raise UsageError(
                f"{useless} ({option}) has no effect without a certificate: give one with {CERTIFICATE} (--tls-cert)"
            )
        return None
    wanted = _choice(properties, CLIENT_CERTIFICATES, ClientCertificates.NONE)
    if wanted is not ClientCertificates.NONE and not _flag(properties, CHECKS_CLIENTS, default=True):
        raise UsageError(
            f"{CHECKS_CLIENTS}=false is not possible with {CLIENT_CERTIFICATES}={wanted.value}: it would accept any "
            "certificate"
        )
    return ServerTlsConfig(
        certificate=certificate,
        key=properties.get(KEY),
        password=properties.get(PASSWORD),
        mode=mode,
        client_certificates=wanted,
        authority=properties.get(AUTHORITY),
    )


def name_server_tls(properties: Mapping[str, str], own: ServerTlsConfig | None) -> TlsConfig | None:
    """Return the TLS settings of a broker's connections to name servers; None for connections without TLS.

    `own` has the TLS settings of the broker's port. As in RocketMQ, TLS is used by default if that port enforces TLS.
    """
    properties = {name: text.strip() for name, text in properties.items() if text.strip()}
    switch = next((name for name in SWITCHES if name in properties), SWITCHES[0])
    if not _flag(properties, switch, default=own is not None and own.mode is TlsMode.ENFORCING):
        return None
    tls = TlsConfig(
        authority=properties.get(CLIENT_AUTHORITY),
        certificate=properties.get(CLIENT_CERTIFICATE),
        key=properties.get(CLIENT_KEY),
        password=properties.get(CLIENT_PASSWORD),
        verify=_flag(properties, CHECKS_SERVER, default=True),
    )
    return with_certificate_of(tls, own)


def same_process_tls(own: ServerTlsConfig) -> TlsConfig | None:
    """Return the TLS settings for connections to the name server in this process; None without TLS.

    The certificate of that name server is trusted.
    """
    if own.mode is not TlsMode.ENFORCING:
        return None
    return with_certificate_of(TlsConfig(authority=own.certificate, check_host=False), own)


def with_certificate_of(tls: TlsConfig, own: ServerTlsConfig | None) -> TlsConfig:
    """Return `tls`, with the broker's certificate as client certificate if `tls` has none."""
    if tls.certificate is not None or own is None:
        return tls
    return replace(tls, certificate=own.certificate, key=own.key, password=own.password)


def _flag(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = properties.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise UsageError(f"{name} is {text!r}; write true or false")
    return text == "true" if text else default


def _choice(properties: Mapping[str, str], name: str, default: Choice) -> Choice:
    text = properties.get(name, "").lower()
    if not text:
        return default
    kind = type(default)
    try:
        return kind(text)
    except ValueError:
        choices = ", ".join(str(each.value) for each in kind)
        raise UsageError(f"{name} is {text!r}; write one of {choices}") from None
