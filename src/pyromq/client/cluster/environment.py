"""Makes a `ConnectionConfig` from environment variables, for clients without one. By default: no TLS, no account.

    PYROMQ_TLS_CA, PYROMQ_TLS_CERT, PYROMQ_TLS_KEY     files, as in `TlsConfig`; any of these enables TLS
    PYROMQ_TLS_KEY_PASSWORD, PYROMQ_TLS_SERVER_NAME
    PYROMQ_TLS_CHECK_HOST, PYROMQ_TLS_VERIFY           false: do not check the name, or the certificate at all
    PYROMQ_TLS                                         true: TLS with the system's authorities; false: no TLS
    PYROMQ_ACCESS_KEY, PYROMQ_SECRET_KEY               an account of brokers with permissions

Options of the command line set the same names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyromq.errors import UsageError
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.tls_config import TlsConfig

TLS, CA, CERT, KEY = "PYROMQ_TLS", "PYROMQ_TLS_CA", "PYROMQ_TLS_CERT", "PYROMQ_TLS_KEY"
KEY_PASSWORD, SERVER_NAME = "PYROMQ_TLS_KEY_PASSWORD", "PYROMQ_TLS_SERVER_NAME"
CHECK_HOST, VERIFY = "PYROMQ_TLS_CHECK_HOST", "PYROMQ_TLS_VERIFY"
ACCESS_KEY, SECRET_KEY = "PYROMQ_ACCESS_KEY", "PYROMQ_SECRET_KEY"


def connections_of(
    connections: ConnectionConfig | None, environment: Mapping[str, str] = os.environ
) -> ConnectionConfig:
    """Return `connections`; if None, those of the environment. Raises `UsageError` for an illegal variable."""
    if connections is not None:
        return connections
    return ConnectionConfig(
        tls=_tls(environment),
        access_key=environment.get(ACCESS_KEY) or None,
        secret_key=environment.get(SECRET_KEY) or None,
    )


def connections_with(variables: Mapping[str, str]) -> ConnectionConfig:
    """Return the connections of the environment; `variables` override its variables of the same names."""
    return connections_of(None, {**os.environ, **variables})


def _tls(environment: Mapping[str, str]) -> TlsConfig | None:
    files = {"authority": CA, "certificate": CERT, "key": KEY, "password": KEY_PASSWORD, "server_name": SERVER_NAME}
    texts = {field: text for field, name in files.items() if (text := environment.get(name))}
    if not _flag(environment, TLS, default=bool(texts.keys() & {"authority", "certificate", "key"})):
        return None
    return TlsConfig(
        **texts,
        check_host=_flag(environment, CHECK_HOST, default=True),
        verify=_flag(environment, VERIFY, default=True),
    )


def _flag(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environment.get(name, "").strip().lower()
    if text in ("", "1", "true"):
        return bool(text) or default
    if text in ("0", "false"):
        return False
    raise UsageError(f"environment variable {name} is {text!r}; write true or false")
