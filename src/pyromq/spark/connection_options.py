"""The options of reads and writes that say how to connect: TLS, an account, a namespace. Knows no Spark.

They travel to tasks as they were given; what is not given says the environment of each process. So a secret need not
be an option: executors may have it in their environment.
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
    variable: str  # of the environment, which it stands for
    doc: str


_OPTIONS = {
    "tls": _Option(environment.TLS, "`true`: connect by TLS, trusting whom the system trusts; `false`: plain"),
    "tlsCa": _Option(environment.CA, "connect by TLS, and trust this authority; a PEM file, on every executor"),
    "tlsCertificate": _Option(environment.CERT, "a certificate of one's own, where servers ask for one; a PEM file"),
    "tlsKey": _Option(environment.KEY, "its key, where that is a file of its own; a password only by the environment"),
    "tlsServerName": _Option(environment.SERVER_NAME, "what servers' certificates name, if not what is connected to"),
    "tlsCheckHost": _Option(environment.CHECK_HOST, "`false`: they may name any host"),
    "tlsVerify": _Option(environment.VERIFY, "`false`: anybody may be the server"),
    "accessKey": _Option(environment.ACCESS_KEY, "an account of brokers with permissions"),
    NAMESPACE: _Option(namespace.VARIABLE, "whose topics and groups are meant, see [clients](clients.md#namespaces)"),
    SECRET: _Option(environment.SECRET_KEY, "its secret; shown nowhere, but Spark sends options to executors in plain"),
}
_KNOWN = {name.lower(): name for name in _OPTIONS}
_TRUTHS = ("tls", "tlsCheckHost", "tlsVerify")
_FOR_TLS = tuple(name for name in _OPTIONS if name.startswith("tls") and name != "tls")
OPTION_NAMES = tuple(_OPTIONS)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to connect, as options say it; shows names only."""

    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # option and value, in order

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.given)

    def connections(self) -> ConnectionConfig | None:
        """Return how clients of this process connect; None: as its environment says. Raises `UsageError`."""
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
        """As clients are told it."""
        return dict(self.given).get(NAMESPACE)


BY_ENVIRONMENT = ConnectionOptions()


def split(options: Mapping[str, str]) -> tuple[ConnectionOptions, dict[str, str]]:
    """Return what options say of connecting, and the other options. Raises `UsageError` for an empty value.

    A namespace of this process's environment is taken into them: tasks must not mean other topics than the driver.
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
    """Raise `UsageError` naming the option; the value of a secret is not shown."""
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
    """Raises `UsageError` for an option that a catalog must not keep."""
    if any(name.lower() == SECRET.lower() for name in options):
        raise UsageError(
            f"option {SECRET} would stand in the catalog for all to read: leave it to the environment "
            f"({environment.SECRET_KEY}), or give it with each query, WITH ({SECRET} '...')"
        )


def connection_documentation() -> str:
    """Return the options as a Markdown table."""
    lines = ["| option | environment | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{option.variable}` | {option.doc} |" for name, option in _OPTIONS.items()]
    return "\n".join(lines)
