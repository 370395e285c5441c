"""Options as fields of a dataclass: declaration, parsing and documentation. No Spark here.

The metadata of a field has the option's `name`, `doc`, parser `read(name, value)`, and `only`: batch, stream, or None
for both. Spark passes option names in lower case; users write them as documented.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any

from pyromq.client.cluster.name_servers import addresses_of, default_namesrv
from pyromq.errors import MQError, UsageError
from pyromq.spark.connection_options import OPTION_NAMES, split

_PREFIX = re.compile(r"(?i)(kafka|pulsar|rocketmq|pyromq|properties|producer|consumer)\.")
_CLIENT = re.compile(r"(?i)(kafka|pulsar)\.(?P<name>.+)")

_USE_NAMESRV = "give the name servers as option namesrvAddr, host:port;host:port"
_GROUP = "that is option group"
_TLS = "that is option tls, true or false"
_ACCOUNT = "an account is given by options accessKey and secretKey"
_WAITS = "a write waits until brokers have stored every row; option delivery says what a repetition does"
_REPEATED = "requests are repeated until deadlineMs"
_BYTES = "bodies are bytes: cast them in the query"

_READS = {
    "topic": "topics to read are given by option subscribe",
    "topics": "topics to read are given by option subscribe, separated by commas",
    "topicspattern": "that is option subscribePattern",
    "topicpattern": "that is option subscribePattern",
    "path": "topics to read are given by option subscribe, and load() takes no path",
    "paths": "topics to read are given by option subscribe, and load() takes no path",
    "includeheaders": "the column properties has them",
    "autooffsetreset": "that is option startingOffsets",
    "scanstartupmode": "that is option startingOffsets",
    "enableautocommit": "that is option commitOffsets",
    "maxpollrecords": "that is option pullBatchSize",
    "polltimeoutms": "that is option pullTimeoutMs",
    "fetchmaxbytes": "that is option pullBytes",
    "rowsperbatch": "that is option maxOffsetsPerTrigger",
    "subexpression": "that is option tagFilter, or sqlFilter for an expression",
    "expression": "that is option tagFilter, or sqlFilter for an expression",
    "filter": "that is option tagFilter, or sqlFilter for an expression",
    "tags": "that is option tagFilter",
    "tag": "that is option tagFilter",
    "numpartitions": "that is option minPartitions, or maxPartitions",
    "isolationlevel": "rows of a transaction that is not committed are never read",
}
_WRITES = {
    "subscribe": "the topic to write to is given by option topic",
    "topics": "one topic is given by option topic, several by a column topic",
    "path": "the topic to write to is given by option topic, and save() takes no path",
    "paths": "the topic to write to is given by option topic, and save() takes no path",
    "acks": _WAITS,
    "waitstored": _WAITS,
    "enableidempotence": "that is option delivery, idempotent or exactlyOnce",
    "transactionalid": "that is option delivery, exactlyOnce",
    "semantic": "that is option delivery",
    "deliveryguarantee": "that is option delivery",
    "sinkdeliveryguarantee": "that is option delivery",
    "batchsize": "that is option sendBatchBytes",
    "maxrequestsize": "that is option maxMessageBytes",
    "maxinflightrequestsperconnection": "that is option inflight",
    "deliverytimeoutms": "that is option deadlineMs",
    "includeheaders": "headers are written from the column properties",
    "tags": "a tag is given by the column tags",
    "tag": "a tag is given by the column tags",
    "keys": "keys are given by the column keys",
    "key": "keys are given by the column keys",
    "partition": "a queue is chosen by the column queueId or shardingKey",
    "partitioner": "a queue is chosen by the column queueId or shardingKey",
    "compressiontype": "rows are written uncompressed",
    "delaytimelevel": "a delay is given by the column delayLevel or deliverTimestamp",
}
_BOTH = {
    **dict.fromkeys(("bootstrapservers", "servers", "brokers", "brokerlist", "serviceurl", "adminurl"), _USE_NAMESRV),
    **dict.fromkeys(("nameserver", "nameservers", "nameserveraddr", "nameserveraddress"), _USE_NAMESRV),
    **dict.fromkeys(("namesrv", "namesrvaddress", "address", "addresses"), _USE_NAMESRV),
    **dict.fromkeys(("groupid", "groupidprefix", "consumergroup", "producergroup", "subscriptionname"), _GROUP),
    **dict.fromkeys(("usetls", "tlsenable", "tlsenabled", "ssl", "usessl", "securityprotocol"), _TLS),
    **dict.fromkeys(("username", "password", "saslmechanism", "sasljaasconfig", "authparams", "token"), _ACCOUNT),
    **dict.fromkeys(("accesskeyid", "accesskeysecret", "secret", "aclaccesskey"), _ACCOUNT),
    **dict.fromkeys(("ssltruststorelocation", "tlstrustcertsfilepath", "sslcalocation"), "that is option tlsCa"),
    **dict.fromkeys(("sslkeystorelocation", "sslcertificatelocation"), "that is option tlsCertificate"),
    **dict.fromkeys(("sslkeylocation", "sslkeypassword"), "that is option tlsKey"),
    "sslendpointidentificationalgorithm": "that is option tlsCheckHost",
    **dict.fromkeys(("retries", "numretries", "fetchoffsetnumretries", "fetchoffsetretryintervalms"), _REPEATED),
    **dict.fromkeys(("requesttimeoutms", "sendmsgtimeout", "timeout", "timeoutms"), "that is option deadlineMs"),
    **dict.fromkeys(("keyserializer", "valueserializer", "keydeserializer", "valuedeserializer"), _BYTES),
    **dict.fromkeys(("schemaregistryurl", "format", "valueformat"), _BYTES),
}

NAME_SERVERS = "namesrvAddr"
OPTIONS_OF_SPARK = frozenset({"checkpointlocation", "queryname"})  # that Spark adds to those of a user
SYNONYMS = {"endpoints": NAME_SERVERS}  # RocketMQ 5's name


def option(name: str, read: Callable[[str, str], Any], default: Any, doc: str, *, only: str | None = None) -> Any:
    """Declare a field of a dataclass as an option."""
    return field(default=default, metadata={"name": name, "read": read, "doc": doc, "only": only})


def documented(options: type) -> list[Field[Any]]:
    """Return the fields that are options."""
    return [each for each in fields(options) if each.metadata]


def names_of(options: type) -> list[str]:
    return [each.metadata["name"] for each in documented(options)]


def read_fields(
    options: type, given: Mapping[str, str], *, unknown: Callable[[str], str], mode: str | None = None
) -> dict[str, Any]:
    """Return the values of the given options by field, with `connecting`, the connection options.

    `unknown(name)` returns the error text for an unknown option. Raises `UsageError` naming option, value and allowed
    values.
    """
    connecting, given = split(given)
    known = {each.metadata["name"].lower(): each for each in documented(options)}
    found: dict[str, Any] = {"connecting": connecting}
    for name, value in _with_name_servers(given).items():
        declared = known.get(name.lower())
        if declared is None:
            raise UsageError(unknown(name))
        called, only = declared.metadata["name"], declared.metadata["only"]
        if mode and only not in (None, mode):
            raise UsageError(f"option {called} is for a {only}, this is a {mode}")
        found[declared.name] = declared.metadata["read"](called, value)
    return found


def _with_name_servers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without synonyms; the driver's name servers are the default."""
    found: dict[str, str] = {}
    for name, value in given.items():
        called = SYNONYMS.get(name.lower(), name)
        if called.lower() == NAME_SERVERS.lower():
            if NAME_SERVERS in found:
                raise UsageError(f"options {NAME_SERVERS} and endpoints are the same; give one of them")
            called = NAME_SERVERS
        found[called] = value
    if NAME_SERVERS not in found:
        addresses_of(None)  # raises naming the environment variable if that is wrong
        found[NAME_SERVERS] = default_namesrv()
    return found


def unknown_option(name: str, own: type, other: type, *, writes: bool) -> str:
    """Return the error text for an unknown option, with the option to use, the nearest name, or all names.

    `own` declares the options of this direction, a write or a read; `other` those of the other direction.
    """
    this, that = ("write", "read") if writes else ("read", "write")
    if (meant := meant_here(name, writes=writes)) is not None:
        return f"option {name!r} does not exist for a {this}: {meant}"
    others = {each.lower(): each for each in names_of(other)}
    if name.lower() in others or meant_here(name, writes=not writes) is not None:
        return f"option {others.get(name.lower(), name)} is for a {that}, this is a {this}"
    known = [*names_of(own), *OPTION_NAMES]
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(known, key=str.lower))}"
    return f"option {name!r} is unknown; {hint}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, ignoring case; None if none is similar."""
    known = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return known[near[0]] if near else None


def checked(name: str, value: str, check: Callable[[str], object]) -> str:
    """Return the value if `check` accepts it. Raises its error with the option's name and value added."""
    if not value:
        raise UsageError(f"option {name} is empty")
    try:
        check(value)
    except MQError as error:
        raise type(error)(f"option {name} is {value!r:.150}: {error}") from error
    return value


def checked_by(check: Callable[[str], object]) -> Callable[[str, str], str]:
    """Return a parser of texts that `check` accepts."""
    return lambda name, value: checked(name, value.strip(), check)


def name_servers_option() -> Any:
    """Declare the option for name servers."""
    return option(
        NAME_SERVERS,
        checked_by(addresses_of),
        "127.0.0.1:9876",
        "name servers, `host:port;host:port`, or the URL of their list; default: the driver's `NAMESRV_ADDR`",
    )


def documentation_of(options: type) -> str:
    """Return the options as a Markdown table."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for each in documented(options):
        only = {"batch": " (batches only)", "stream": " (streams only)"}.get(each.metadata["only"] or "", "")
        lines.append(f"| `{each.metadata['name']}` | {_default(each)} | {each.metadata['doc']}{only} |")
    return "\n".join(lines)


def _default(each: Field[Any]) -> str:
    if each.default is None or each.default == ():
        return ""
    return f"`{str(each.default).lower() if isinstance(each.default, bool) else each.default}`"


def meant_here(name: str, *, writes: bool) -> str | None:
    """Return advice for an option name of another connector; None for an unknown name."""
    plain = _plain(_PREFIX.sub("", name, count=1))
    found = (_WRITES if writes else _READS).get(plain) or _BOTH.get(plain)
    if found is None and (of_client := _CLIENT.fullmatch(name)):
        return f"{of_client[1].lower()}.* is for the client of {of_client[1].capitalize()}, which is not used here"
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
