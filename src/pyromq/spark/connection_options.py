"""The options of reads and writes for connections: TLS, an account, a namespace. No Spark here.

Tasks get the options as they were given. For missing options, the environment of each process counts, so that a secret
can be in the executors' environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyromq.client.cluster import environment, namespace
from pyromq.errors import UsageError
from pyromq.spark import option_values as values

if TYPE_CHECKING:
    from pyromq.net.connection_config import ConnectionConfig

SECRET = "secretKey"
NAMESPACE = "namespace"


class _Option(NamedTuple):
    variable: str  # of the environment, that the option replaces
    doc: str


_OPTIONS = {
    "tls": _Option(environment.TLS, "`true`: connect by TLS with the system's authorities; `false`: without TLS"),
    "tlsCa": _Option(environment.CA, "connect by TLS with this authority; a PEM file on every executor"),
    "tlsCertificate": _Option(environment.CERT, "client certificate, if servers require one; a PEM file"),
    "tlsKey": _Option(environment.KEY, "its key, if in another file; a password is possible only in the environment"),
    "tlsServerName": _Option(
        environment.SERVER_NAME, "name in the servers' certificates, if not the host of the address"
    ),
    "tlsCheckHost": _Option(environment.CHECK_HOST, "`false`: certificates may name any host"),
    "tlsVerify": _Option(environment.VERIFY, "`false`: server certificates are not verified"),
    "accessKey": _Option(environment.ACCESS_KEY, "the account, for brokers with permissions"),
    NAMESPACE: _Option(namespace.VARIABLE, "namespace of topics and groups, see [clients](clients.md#namespaces)"),
    SECRET: _Option(
        environment.SECRET_KEY, "the account's secret; never logged, but Spark sends options to executors unencrypted"
    ),
}
_KNOWN = {name.lower(): name for name in _OPTIONS}
_TRUTHS = ("tls", "tlsCheckHost", "tlsVerify")
_FOR_TLS = tuple(name for name in _OPTIONS if name.startswith("tls") and name != "tls")
OPTION_NAMES = tuple(_OPTIONS)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of a connection; their values are not in `repr`."""

    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # option and value, in order

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.given)

    def connections(self) -> ConnectionConfig | None:
        """Return the configuration of this process's clients; None: that of the environment. Raises `UsageError`."""
        given = {name: value for name, value in self.given if name != NAMESPACE}
        variables = {_OPTIONS[name].variable: value for name, value in given.items()}
        if not variables:
            return None
        try:
            connections = environment.connections_with(variables)
        except UsageError as error:
            for name, other in (("accessKey", SECRET), (SECRET, "accessKey")):
                if name in given and other not in given:
                    raise UsageError(
                        f"option {name} is given without {other}; give option {other}, or set "
                        f"{_OPTIONS[other].variable} in the environment of driver and executors"
                    ) from error
            raise
        tls = connections.tls
        if tls is None and (wanted := [name for name in _FOR_TLS if name in given]):
            raise UsageError(f"option {wanted[0]} is for TLS, which is off; give option tlsCa, or tls true")
        if tls is not None and "tlsKey" in given and tls.certificate is None:
            raise UsageError("option tlsKey is given without tlsCertificate, the certificate that it belongs to")
        return connections

    @property
    def namespace(self) -> str | None:
        return dict(self.given).get(NAMESPACE)


BY_ENVIRONMENT = ConnectionOptions()


def split(options: Mapping[str, str]) -> tuple[ConnectionOptions, dict[str, str]]:
    """Return the connection options and the other options. Raises `UsageError` for an empty or wrong value.

    The namespace of this process's environment is added, so that tasks use the same topics as the driver.
    """
    given = {_KNOWN[name.lower()]: value.strip() for name, value in options.items() if name.lower() in _KNOWN}
    for name, value in given.items():
        _check(name, value)
    off = given.get("tls", "").lower() == "false"
    if off and (wanted := [name for name in _FOR_TLS if name in given]):
        raise UsageError(f"option tls is false, and option {wanted[0]} is for TLS; leave out one of them")
    if NAMESPACE not in given and (of_driver := namespace.namespace_of(None, "").name):
        given[NAMESPACE] = of_driver
    others = {name: value for name, value in options.items() if name.lower() not in _KNOWN}
    return ConnectionOptions(tuple(sorted(given.items()))), others


def _check(name: str, value: str) -> None:
    """Raise `UsageError` naming the option, without the value of a secret."""
    if not value:
        raise UsageError(f"option {name} is empty")
    if name in _TRUTHS:
        values.truth(name, value)
    if name == NAMESPACE:
        try:
            namespace.Namespace(value)
        except UsageError as error:
            raise type(error)(f"option {name} is {value!r}: {error}") from error


def check_kept(options: Mapping[str, str]) -> None:
    """Raise `UsageError` for an option that a catalog must not keep."""
    if any(name.lower() == SECRET.lower() for name in options):
        raise UsageError(
            f"option {SECRET} would be readable in the catalog: leave it to the environment "
            f"({environment.SECRET_KEY}), or give it with each query, WITH ({SECRET} '...')"
        )


def connection_documentation() -> str:
    """Return the options as a Markdown table."""
    lines = ["| option | environment | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{option.variable}` | {option.doc} |" for name, option in _OPTIONS.items()]
    return "\n".join(lines)
