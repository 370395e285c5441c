"""The columns of the source and of the sink, and the properties that the source, the sink and jobs add to messages.

RocketMQ has no messages without a body. With option nullBody=tombstone, a row with a null body is written as a
tombstone, and read as a row with a null body. No Spark here; types have Spark's names.
"""

from __future__ import annotations

SOURCE_COLUMNS = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
    "uniqKey": "string",
    "tags": "string",
    "keys": "array<string>",
    "body": "binary",
    "properties": "map<string,string>",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "reconsumeTimes": "int",
    "sysFlag": "int",
    "flag": "int",
    "commitLogOffset": "bigint",
}
# Allowed types. A table has texts where they are allowed.
SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "flag": ("int",),
    "uniqKey": ("string",),
    "shardingKey": ("string",),
    "queueId": ("int",),
    "brokerName": ("string",),
    "delayLevel": ("int",),
    "deliverTimestamp": ("timestamp",),
    "bornTimestamp": ("timestamp",),
}

TOMBSTONE, TOMBSTONE_BODY = "TOMBSTONE", b"\0"  # property `true` and body of a tombstone
UNDECODABLE = "UNDECODABLE"  # of a row: why its body is null, or still as stored
BORN = "BORN_TIMESTAMP"  # column bornTimestamp in ms: all messages of a run have one born time
ORIGIN = "ORIGIN"  # of copies: CLUSTER:TOPIC/BROKER/QUEUE/OFFSET
REDRIVES = "REDRIVES"  # of redriven dead letters: the number of redrives
