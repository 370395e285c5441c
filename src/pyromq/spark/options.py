"""Declares options as fields of a dataclass, with the connection options that reads and writes share. No Spark here.

The metadata of a field has the option's `name`, `doc`, parser `read(name, value)`, and `only`: BATCH, STREAM, or None
if the option is for both. Spark passes option names in lower case; users write them as documented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyromq.client.cluster import environment, namespace
from pyromq.client.cluster.name_servers import addresses_of
from pyromq.errors import UsageError
from pyromq.spark import option_values as values

if TYPE_CHECKING:
    from pyromq.net.connection_config import ConnectionConfig

BATCH, STREAM = "batch", "stream"  # modes of a read or a write; an option is for one of them or for both
NAME_SERVERS, NAMESPACE, SECRET = "namesrvAddr", "namespace", "secretKey"
OPTIONS_OF_SPARK = frozenset({"checkpointlocation", "queryname"})  # options that Spark adds to the user's options


def option(name: str, read: Callable[[str, str], Any], default: Any, doc: str, *, only: str | None = None) -> Any:
    """Declare a field of a dataclass as the option `name`.

    `read(name, value)` parses the option's value; `only` is BATCH or STREAM.
    """
    return field(default=default, metadata={"name": name, "read": read, "doc": doc, "only": only})


def name_servers_option() -> Any:
    """Declare option `namesrvAddr`: the addresses of the name servers."""
    return option(
        NAME_SERVERS,
        checked_by(addresses_of),
        "127.0.0.1:9876",
        "name servers, `host:port;host:port`, or the URL of their list; default: the driver's `NAMESRV_ADDR`",
    )


def checked_by(check: Callable[[str], object]) -> Callable[[str, str], str]:
    """Return a parser of strings that `check` accepts.

    The parser raises the error of `check`, with the option's name and value.
    """

    def read(name: str, value: str) -> str:
        given = values.not_blank(name, value)
        values.check_value(f"option {name}", given, check)
        return given

    return read


def names_of(options: type) -> list[str]:
    return [each.metadata["name"] for each in declared(options)]


def declared(options: type) -> list[Field[Any]]:
    return [each for each in fields(options) if each.metadata]


class _ConnectionOption(NamedTuple):
    variable: str  # environment variable that the option replaces
    doc: str
    check: Callable[[str, str], object] = values.not_blank


# Tasks get these options as the user gave them. A missing option is taken from the environment of each process, so that
# a secret can stay in the executors' environment.
CONNECTION_OPTIONS = {
    "tls": _ConnectionOption(
        environment.TLS,
        "`true`: connect by TLS with the system's authorities; `false`: without TLS",
        values.truth,
    ),
    "tlsCa": _ConnectionOption(environment.CA, "connect by TLS and trust this authority; a PEM file on every executor"),
    "tlsCertificate": _ConnectionOption(environment.CERT, "client certificate, if servers require one; a PEM file"),
    "tlsKey": _ConnectionOption(
        environment.KEY, "the certificate's key, if in another file; only the environment can have the key's password"
    ),
    "tlsServerName": _ConnectionOption(
        environment.SERVER_NAME, "name in the servers' certificates, if not the host of the address"
    ),
    "tlsCheckHost": _ConnectionOption(environment.CHECK_HOST, "`false`: certificates may name any host", values.truth),
    "tlsVerify": _ConnectionOption(environment.VERIFY, "`false`: server certificates are not verified", values.truth),
    "accessKey": _ConnectionOption(environment.ACCESS_KEY, "the account, for brokers with permissions"),
    NAMESPACE: _ConnectionOption(
        namespace.VARIABLE,
        "namespace of topics and groups, see [clients](clients.md#namespaces)",
        checked_by(namespace.Namespace),
    ),
    SECRET: _ConnectionOption(
        environment.SECRET_KEY, "the account's secret; never logged, but Spark sends options to executors unencrypted"
    ),
}
_KNOWN = {name.lower(): name for name in CONNECTION_OPTIONS}
_FOR_TLS = tuple(name for name in CONNECTION_OPTIONS if name.startswith("tls") and name != "tls")
_FILES = ("tlsCa", "tlsCertificate", "tlsKey")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The connection options of a read or write. `repr` does not show their values."""

    # Pairs of option name and value, in order of names.
    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def connections(self) -> ConnectionConfig | None:
        """Return the configuration of this process's clients; None if no option is given and the environment's applies.

        Raises `UsageError` for options that do not fit together.
        """
        given = {name: value for name, value in self.given if name != NAMESPACE}
        variables = {CONNECTION_OPTIONS[name].variable: value for name, value in given.items()}
        if not variables:
            return None
        try:
            connections = environment.connections_with(variables)
        except UsageError as error:
            for name, other in (("accessKey", SECRET), (SECRET, "accessKey")):
                if name in given and other not in given:
                    raise UsageError(
                        f"option {name} is given without {other}; give option {other}, or set "
                        f"{CONNECTION_OPTIONS[other].variable} in the environment of driver and executors"
                    ) from error
            raise
        for name in _FILES:
            if name in given and not Path(given[name]).is_file():
                raise UsageError(f"option {name} is {given[name]!r}, and there is no such file on this machine")
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
    """Split options into the connection options and the others. Raises `UsageError` for an empty or wrong value.

    The namespace of this process's environment is added, so that tasks use the same topics as the driver.
    """
    given = {_KNOWN[name.lower()]: value.strip() for name, value in options.items() if name.lower() in _KNOWN}
    for name, value in given.items():
        CONNECTION_OPTIONS[name].check(name, value)
    off = given.get("tls", "").lower() == "false"
    if off and (wanted := [name for name in _FOR_TLS if name in given]):
        raise UsageError(f"option tls is false, and option {wanted[0]} is for TLS; leave out one of them")
    if NAMESPACE not in given and (of_driver := namespace.namespace_of(None, "").name):
        given[NAMESPACE] = of_driver
    others = {name: value for name, value in options.items() if name.lower() not in _KNOWN}
    return ConnectionOptions(tuple(sorted(given.items()))), others


def check_kept(options: Mapping[str, str]) -> None:
    """Raise `UsageError` if the options contain `secretKey`, which a catalog must not store."""
    if any(name.lower() == SECRET.lower() for name in options):
        raise UsageError(
            f"option {SECRET} would be readable in the catalog: leave it to the environment "
            f"({environment.SECRET_KEY}), or give it with each query, WITH ({SECRET} '...')"
        )
