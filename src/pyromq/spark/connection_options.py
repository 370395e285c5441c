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


@dataclass(frozen=True, slots=True)
class Connecting:
    """How to connect, as options say it; shows names only."""

    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # option and value, in order

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.given)

    def connections(self) -> ConnectionConfig | None:
        """Return how clients of this process connect; None: as its environment says. Raises `UsageError`."""
        variables = {_OPTIONS[name].variable: value for name, value in self.given if name != NAMESPACE}
        return environment.connections_with(variables) if variables else None

    @property
    def namespace(self) -> str | None:
        """As clients are told it."""
        return dict(self.given).get(NAMESPACE)


BY_ENVIRONMENT = Connecting()


def split(options: Mapping[str, str]) -> tuple[Connecting, dict[str, str]]:
    """Return what options say of connecting, and the other options. Raises `UsageError` for an empty value.

    A namespace of this process's environment is taken into them: tasks must not mean other topics than the driver.
    """
    given = {_KNOWN[name.lower()]: value.strip() for name, value in options.items() if name.lower() in _KNOWN}
    for name, value in given.items():
        if not value:
            raise UsageError(f"option {name} is empty")
    if NAMESPACE not in given and (of_driver := namespace.namespace_of(None, "").name):
        given[NAMESPACE] = of_driver
    others = {name: value for name, value in options.items() if name.lower() not in _KNOWN}
    return Connecting(tuple(sorted(given.items()))), others


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
