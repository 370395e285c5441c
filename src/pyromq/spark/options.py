"""Declares options as fields of a dataclass, with the connection options that reads and writes share. No Spark here.

The metadata of a field has the option's `name`, `doc`, parser `read(name, value)`, and `only`: batch, stream, or None
if the option is for both. Spark passes option names in lower case; users write them as documented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyromq.client.cluster import environment, namespace
from pyromq.client.cluster.name_servers import addresses_of, default_namesrv
from pyromq.errors import UsageError
from pyromq.spark import option_values as values
from pyromq.spark.option_values import did_you_mean

if TYPE_CHECKING:
    from pyromq.net.connection_config import ConnectionConfig

NAME_SERVERS, NAMESPACE, SECRET = "namesrvAddr", "namespace", "secretKey"
OPTIONS_OF_SPARK = frozenset({"checkpointlocation", "queryname"})  # options that Spark adds to the user's options
SYNONYMS = {"endpoints": NAME_SERVERS}  # other names of options: `endpoints` is the name in RocketMQ 5


def option(name: str, read: Callable[[str, str], Any], default: Any, doc: str, *, only: str | None = None) -> Any:
    """Declare a field of a dataclass as the option `name`.

    `read(name, value)` parses the option's text; `only` is batch or stream.
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
    """Return a parser of texts that `check` accepts.

    The parser raises the error of `check`, with the option's name and value.
    """

    def read(name: str, value: str) -> str:
        text = values.text(name, value)
        values.check_value(f"option {name}", text, check, text)
        return text

    return read


def names_of(options: type) -> list[str]:
    return [each.metadata["name"] for each in _declared(options)]


def documentation_of(options: type) -> str:
    """Return the documentation of the options of a dataclass as a Markdown table."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for each in _declared(options):
        only = {"batch": " (batches only)", "stream": " (streams only)"}.get(each.metadata["only"] or "", "")
        lines.append(f"| `{each.metadata['name']}` | {_default(each)} | {each.metadata['doc']}{only} |")
    return "\n".join(lines)


def read_fields(options: type, given: Mapping[str, str], *, mode: str | None = None) -> dict[str, Any]:
    """Parse options; return the values by field name, with the connection options as `connecting`.

    Raises `UsageError` naming option, value and allowed values.
    """
    connecting, others = split(given)
    known = {each.metadata["name"].lower(): each for each in _declared(options)}
    found: dict[str, Any] = {"connecting": connecting}
    for name, value in _with_name_servers(others).items():
        declared = known.get(name.lower())
        if declared is None:
            raise UsageError(_unknown(name, options))
        called, only = declared.metadata["name"], declared.metadata["only"]
        if mode and only not in (None, mode):
            raise UsageError(f"option {called} is for a {only}, and this is a {mode}; leave the option out")
        found[declared.name] = declared.metadata["read"](called, value)
    return found


def _declared(options: type) -> list[Field[Any]]:
    return [each for each in fields(options) if each.metadata]


def _default(each: Field[Any]) -> str:
    if each.default is None or each.default == ():
        return ""
    return f"`{str(each.default).lower() if isinstance(each.default, bool) else each.default}`"


def _with_name_servers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with synonyms replaced. Missing name servers are taken from this process's environment."""
    found: dict[str, str] = {}
    for name, value in given.items():
        called = SYNONYMS.get(name.lower(), name)
        if called.lower() == NAME_SERVERS.lower():
            if NAME_SERVERS in found:
                raise UsageError(f"options {NAME_SERVERS} and endpoints both name the name servers; give one of them")
            called = NAME_SERVERS
        found[called] = value
    if NAME_SERVERS not in found:
        addresses_of(None)  # raises an error that names the environment variable, if its value is wrong
        found[NAME_SERVERS] = default_namesrv()
    return found


def _unknown(name: str, own: type) -> str:
    """Return the error text for an unknown option, with the option to use, the nearest name, or all names."""
    from pyromq.spark.read.read_options import ReadOptions
    from pyromq.spark.write.sink_options import SinkOptions

    (this, here), (that, there) = ("read", _READS), ("write", _WRITES)
    other: type = SinkOptions
    if own is SinkOptions:
        this, here, that, there, other = that, there, this, here, ReadOptions
    if (meant := _meant(name, here)) is not None:
        return f"option {name!r} does not exist for a {this}: {meant}"
    others = {each.lower(): each for each in names_of(other)}
    if name.lower() in others or _meant(name, there) is not None:
        return f"option {others.get(name.lower(), name)} is for a {that}, this is a {this}"
    return f"option {name!r} is unknown; {did_you_mean(name, [*names_of(own), *CONNECTION_OPTIONS])}"


def _meant(name: str, advice: Mapping[str, str]) -> str | None:
    """Return advice for an option name of another connector, for example of Kafka; None for an unknown name."""
    plain = re.sub(r"[^a-z0-9]", "", _PREFIX.sub("", name, count=1).lower())
    found = advice.get(plain) or _BOTH.get(plain)
    if found is None and (of_client := _CLIENT.fullmatch(name)):
        return f"{of_client[1].lower()}.* is for the client of {of_client[1].capitalize()}, which is not used here"
    return found


def _by_name(advice: Mapping[str, str]) -> dict[str, str]:
    """Return the advice for each option name. Option names are in lower case without separators."""
    return {name: text for text, names in advice.items() for name in names.split()}


_PREFIX = re.compile(r"(?i)(kafka|pulsar|rocketmq|pyromq|properties|producer|consumer)\.")
_CLIENT = re.compile(r"(?i)(kafka|pulsar)\..+")

# What to use instead of options of other connectors.
_READS = _by_name(
    {
        "topics to read are given by option subscribe": "topic",
        "topics to read are given by option subscribe, separated by commas": "topics",
        "topics to read are given by option subscribe, and load() takes no path": "path paths",
        "that is option subscribePattern": "topicspattern topicpattern",
        "the column properties has them": "includeheaders",
        "that is option startingOffsets": "autooffsetreset scanstartupmode",
        "that is option commitOffsets": "enableautocommit",
        "that is option pullBatchSize": "maxpollrecords",
        "that is option pullTimeoutMs": "polltimeoutms",
        "that is option pullBytes": "fetchmaxbytes",
        "that is option maxOffsetsPerTrigger": "rowsperbatch",
        "that is option tagFilter, or sqlFilter for an expression": "subexpression expression filter",
        "that is option tagFilter": "tags tag",
        "that is option minPartitions, or maxPartitions": "numpartitions",
        "rows of a transaction that is not committed are never read": "isolationlevel",
    }
)
_WRITES = _by_name(
    {
        "the topic to write to is given by option topic": "subscribe",
        "one topic is given by option topic, several by a column topic": "topics",
        "the topic to write to is given by option topic, and save() takes no path": "path paths",
        "a write waits until brokers have stored every row; option delivery says what a repetition does": (
            "acks waitstored"
        ),
        "that is option delivery, idempotent or exactlyOnce": "enableidempotence",
        "that is option delivery, exactlyOnce": "transactionalid",
        "that is option delivery": "semantic deliveryguarantee sinkdeliveryguarantee",
        "that is option sendBatchBytes": "batchsize",
        "that is option maxMessageBytes": "maxrequestsize",
        "that is option inflight": "maxinflightrequestsperconnection",
        "that is option deadlineMs": "deliverytimeoutms",
        "headers are written from the column properties": "includeheaders",
        "a tag is given by the column tags": "tags tag",
        "keys are given by the column keys": "keys key",
        "a queue is chosen by the column queueId or shardingKey": "partition partitioner",
        "rows are written uncompressed": "compressiontype",
        "a delay is given by the column delayLevel or deliverTimestamp": "delaytimelevel",
    }
)
_BOTH = _by_name(
    {
        "give the name servers as option namesrvAddr, host:port;host:port": (
            "bootstrapservers servers brokers brokerlist serviceurl adminurl nameserver nameservers nameserveraddr"
            " nameserveraddress namesrv namesrvaddress address addresses"
        ),
        "that is option group": "groupid groupidprefix consumergroup producergroup subscriptionname",
        "that is option tls, true or false": "usetls tlsenable tlsenabled ssl usessl securityprotocol",
        "an account is given by options accessKey and secretKey": (
            "username password saslmechanism sasljaasconfig authparams token accesskeyid accesskeysecret secret"
            " aclaccesskey"
        ),
        "that is option tlsCa": "ssltruststorelocation tlstrustcertsfilepath sslcalocation",
        "that is option tlsCertificate": "sslkeystorelocation sslcertificatelocation",
        "that is option tlsKey": "sslkeylocation sslkeypassword",
        "that is option tlsCheckHost": "sslendpointidentificationalgorithm",
        "failed requests are retried until deadlineMs": (
            "retries numretries fetchoffsetnumretries fetchoffsetretryintervalms"
        ),
        "that is option deadlineMs": "requesttimeoutms sendmsgtimeout timeout timeoutms",
        "bodies are bytes: cast them in the query": (
            "keyserializer valueserializer keydeserializer valuedeserializer schemaregistryurl format valueformat"
        ),
    }
)


class _ConnectionOption(NamedTuple):
    variable: str  # environment variable that the option replaces
    doc: str
    check: Callable[[str, str], object] = values.text


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


def connection_documentation() -> str:
    """Return the documentation of the connection options as a Markdown table."""
    lines = ["| option | environment | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{each.variable}` | {each.doc} |" for name, each in CONNECTION_OPTIONS.items()]
    return "\n".join(lines)
