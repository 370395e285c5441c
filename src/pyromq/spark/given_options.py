"""Parses the options that a user gives to a read or a write. No Spark here.

An unknown option is refused with the nearest name, or with the option to use instead of another connector's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyromq.client.cluster.name_servers import addresses_of, default_namesrv
from pyromq.errors import UsageError
from pyromq.spark.option_values import did_you_mean
from pyromq.spark.options import BATCH, CONNECTION_OPTIONS, NAME_SERVERS, declared, names_of, split
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.write.sink_options import SinkOptions

ENDPOINTS = "endpoints"  # the name of option namesrvAddr in RocketMQ 5


def read_options(given: Mapping[str, str], mode: str | None = BATCH) -> ReadOptions:
    """Parse and check the options of a read. Raises `UsageError` naming option, value and allowed values.

    `mode` is BATCH or STREAM; an option for the other mode is refused. None: the mode is not known yet, and all options
    are allowed.
    """
    options = ReadOptions(**_parsed(ReadOptions, given, mode=mode))
    if mode == BATCH and options.starting_offsets == "latest":
        raise UsageError(
            "option startingOffsets is 'latest', and a batch from there is empty; leave it out, or use a stream"
        )
    return options


def sink_options(given: Mapping[str, str], mode: str | None = None) -> SinkOptions:
    """Parse and check the options of a write. Raises `UsageError` naming option, value and allowed values.

    `mode` as in `read_options`.
    """
    return SinkOptions(**_parsed(SinkOptions, given, mode=mode))


def _parsed(options: type, given: Mapping[str, str], *, mode: str | None = None) -> dict[str, Any]:
    """Parse options; return the values by field name, with the connection options as `connecting`.

    Raises `UsageError` naming option, value and allowed values.
    """
    connecting, others = split(given)
    known = {each.metadata["name"].lower(): each for each in declared(options)}
    found: dict[str, Any] = {"connecting": connecting}
    for name, value in _with_name_servers(others).items():
        if (each := known.get(name.lower())) is None:
            raise UsageError(_unknown(name, options))
        called, only = each.metadata["name"], each.metadata["only"]
        if mode and only not in (None, mode):
            raise UsageError(f"option {called} is for a {only}, and this is a {mode}; leave the option out")
        found[each.name] = each.metadata["read"](called, value)
    return found


def _with_name_servers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with `endpoints` renamed. Missing name servers are taken from this process's environment."""
    names = [name for name in given if name.lower() in (NAME_SERVERS.lower(), ENDPOINTS)]
    if len(names) > 1:
        raise UsageError(f"options {NAME_SERVERS} and {ENDPOINTS} both name the name servers; give one of them")
    if not names:
        addresses_of(None)  # raises an error that names the environment variable, if its value is wrong
    servers = given[names[0]] if names else default_namesrv()
    return {NAME_SERVERS: servers} | {name: value for name, value in given.items() if name not in names}


def _unknown(name: str, own: type) -> str:
    """Return the error text for an unknown option, with the option to use, the nearest name, or all names."""
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
    if found is None and name.lower().startswith("spark."):
        return "settings of Spark are given to the session"
    return found


def _by_name(advice: Mapping[str, str]) -> dict[str, str]:
    """Return the advice for each option name. Option names are in lower case without separators."""
    return {name: instead for instead, names in advice.items() for name in names.split()}


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
