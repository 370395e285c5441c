"""TLS of the servers that `pyromq serve` runs: upstream's names, in the file of settings and as options.

Upstream has them in a file of their own and as system properties. Source: RocketMQ 4.9.8, TlsSystemConfig, TlsHelper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from pyromq.errors import UsageError
from pyromq.net.tls.config import TlsConfig
from pyromq.net.tls.server import ClientCertificates, ServerTlsConfig, TlsMode

Choice = TypeVar("Choice", bound=Enum)

MODE, CERTIFICATE, KEY = "tls.server.mode", "tls.server.certPath", "tls.server.keyPath"
PASSWORD, AUTHORITY = "tls.server.keyPassword", "tls.server.trustCertPath"
CLIENT_CERTIFICATES, CHECKS_CLIENTS = "tls.server.need.client.auth", "tls.server.authClient"
TEST_MODE = "tls.test.mode.enable"
SWITCHES = ("tls.enable", "useTLS")  # of connections to name servers
CLIENT_CERTIFICATE, CLIENT_KEY, CLIENT_PASSWORD = "tls.client.certPath", "tls.client.keyPath", "tls.client.keyPassword"
CLIENT_AUTHORITY, CHECKS_SERVER = "tls.client.trustCertPath", "tls.client.authServer"

SERVER_NAMES = frozenset({MODE, CERTIFICATE, KEY, PASSWORD, AUTHORITY, CLIENT_CERTIFICATES, CHECKS_CLIENTS, TEST_MODE})
CLIENT_NAMES = frozenset({*SWITCHES, CLIENT_CERTIFICATE, CLIENT_KEY, CLIENT_PASSWORD, CLIENT_AUTHORITY, CHECKS_SERVER})


def server_tls(properties: Mapping[str, str]) -> ServerTlsConfig | None:
    """Return TLS of a server's port; None where it has no certificate. Raises `UsageError` naming the setting."""
    properties = {name: text.strip() for name, text in properties.items() if text.strip()}
    if _flag(properties, TEST_MODE, default=False):
        raise UsageError(
            f"{TEST_MODE}=true is not possible: no certificate is made here, because nobody could check it; give one "
            f"with {CERTIFICATE} (--tls-cert)"
        )
    certificate = properties.get(CERTIFICATE)
    mode = _choice(properties, MODE, TlsMode.DISABLED if certificate is None else TlsMode.PERMISSIVE)
    if certificate is None:
        if mode is not TlsMode.DISABLED:
            raise UsageError(
                f"{MODE}={mode.value} needs a certificate: give it with {CERTIFICATE} and {KEY} (--tls-cert, --tls-key)"
            )
        return None
    wanted = _choice(properties, CLIENT_CERTIFICATES, ClientCertificates.NONE)
    if wanted is not ClientCertificates.NONE and not _flag(properties, CHECKS_CLIENTS, default=True):
        raise UsageError(
            f"{CHECKS_CLIENTS}=false is not possible with {CLIENT_CERTIFICATES}={wanted.value}: any one would do"
        )
    return ServerTlsConfig(
        certificate=certificate,
        key=properties.get(KEY),
        password=properties.get(PASSWORD),
        mode=mode,
        client_certificates=wanted,
        authority=properties.get(AUTHORITY),
    )


def to_name_servers(properties: Mapping[str, str], own: ServerTlsConfig | None) -> TlsConfig | None:
    """Return TLS of a broker's connections to name servers; None: plain. `own` is that of the broker's port.

    By default it is as upstream's: TLS where the own port takes nothing else.
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
    return showing(tls, own)


def to_itself(own: ServerTlsConfig) -> TlsConfig | None:
    """Return how a broker connects to the name server of its own process, whose certificate it knows; None: plain."""
    if own.mode is not TlsMode.ENFORCING:
        return None
    return showing(TlsConfig(authority=own.certificate, check_host=False), own)


def showing(tls: TlsConfig, own: ServerTlsConfig | None) -> TlsConfig:
    """Return what also shows a broker's certificate to name servers that ask for one, unless it shows another one."""
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
