"""The columns of the Spark source and sink, and the message properties that the source, the sink and the jobs add.

RocketMQ has no messages without a body. With option nullBody=tombstone, the sink writes a row with a null body as a
tombstone (a message with property TOMBSTONE). The source reads a tombstone as a row with a null body. No Spark here;
types have Spark's names.
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
# Spark types that each sink column may have. A table created in SQL has type string where string is allowed.
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

TOMBSTONE, TOMBSTONE_BODY = "TOMBSTONE", b"\0"  # a tombstone has property TOMBSTONE=`true` and a body of one zero byte
UNDECODABLE = "UNDECODABLE"  # property of a read row: why the body was not decompressed; the body is null or as stored
BORN = "BORN_TIMESTAMP"  # property with column bornTimestamp (ms): messages of a batch message share one born time
ORIGIN = "ORIGIN"  # property of copied messages: place of the original, CLUSTER:TOPIC/BROKER/QUEUE/OFFSET
REDRIVES = "REDRIVES"  # property of redriven dead letters: how often the message was redriven
