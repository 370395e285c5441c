"""Maps option names of other connectors to the options here. No Spark here.

Names are compared in lower case, without punctuation and without a prefix such as `kafka.`: `kafka.bootstrap.servers`
and `bootstrap_servers` are `bootstrapservers`.
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"(?i)(kafka|pulsar|rocketmq|pyromq|properties|producer|consumer)\.")
_CLIENT = re.compile(r"(?i)(kafka|pulsar)\.(?P<name>.+)")

_NAME_SERVERS = "give the name servers as option namesrvAddr, host:port;host:port"
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
    **dict.fromkeys(("bootstrapservers", "servers", "brokers", "brokerlist", "serviceurl", "adminurl"), _NAME_SERVERS),
    **dict.fromkeys(("nameserver", "nameservers", "nameserveraddr", "nameserveraddress"), _NAME_SERVERS),
    **dict.fromkeys(("namesrv", "namesrvaddress", "address", "addresses"), _NAME_SERVERS),
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


def meant_here(name: str, *, writes: bool) -> str | None:
    """Return advice for an option name of another connector; None for an unknown name."""
    plain = _plain(_PREFIX.sub("", name, count=1))
    found = (_WRITES if writes else _READS).get(plain) or _BOTH.get(plain)
    if found is None and (of_client := _CLIENT.fullmatch(name)):
        return f"{of_client[1].lower()}.* is for the client of {of_client[1].capitalize()}, which is not used here"
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
