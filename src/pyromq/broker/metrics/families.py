"""The metrics of a broker. Names without `pyromq_` are RocketMQ 5's, with its labels and units as far as we know them.

Source: RocketMQ 5, BrokerMetricsConstant, BrokerMetricsManager, DefaultStoreMetricsConstant.
"""

from __future__ import annotations

from pyromq.metrics.exposition import Family, Kind

_COUNTER, _GAUGE = Kind.COUNTER, Kind.GAUGE
_READ = ("consumer_group", "topic", "is_retry", "is_system")
_QUEUE = ("consumer_group", "topic", "queue_id")
_MEMBER = ("language", "version", "protocol_type")

# Messages.
MESSAGES_IN = Family("rocketmq_messages_in_total", _COUNTER, "Messages stored, by topic.", ("topic", "is_system"))
BYTES_IN = Family("rocketmq_throughput_in_total", _COUNTER, "Bytes stored, by topic.", ("topic", "is_system"), "bytes")
MESSAGES_OUT = Family(
    "rocketmq_messages_out_total", _COUNTER, "Messages that consumers pulled, by group and topic.", _READ
)
BYTES_OUT = Family("rocketmq_throughput_out_total", _COUNTER, "Bytes that consumers pulled.", _READ, "bytes")
DEAD_LETTERS = Family(
    "rocketmq_send_to_dlq_messages_total",
    _COUNTER,
    "Messages stored as dead letters, by group.",
    ("consumer_group", "is_system"),
)
SENT_BACK = Family(
    "pyromq_sent_back_messages_total",
    _COUNTER,
    "Messages that consumers sent back, to get them again.",
    ("consumer_group", "topic"),
)
FAILED_PUTS = Family("pyromq_failed_puts_total", _COUNTER, "Messages that the store did not take.")
EMPTY_PULLS = Family("pyromq_empty_pulls_total", _COUNTER, "Pulls that found nothing.")

# How far groups are behind.
LAG = Family("rocketmq_consumer_lag_messages", _GAUGE, "Messages that a group has not consumed yet.", _READ)
LAG_LATENCY = Family(
    "rocketmq_consumer_lag_latency",
    _GAUGE,
    "Age of the oldest message that a group has not consumed yet; 0 where there is none.",
    _READ,
    "milliseconds",
)
QUEUE_LAG = Family("pyromq_consumer_queue_lag_messages", _GAUGE, "The same messages, by queue.", _QUEUE, detail=True)
QUEUE_LAG_SECONDS = Family(
    "pyromq_consumer_queue_lag_seconds",
    _GAUGE,
    "Age of the oldest message of a queue that a group has not consumed yet; 0 where there is none.",
    _QUEUE,
    "seconds",
    detail=True,
)

# Who is connected, and what waits.
PRODUCERS = Family("rocketmq_producer_connections", _GAUGE, "Producers, by their language and version.", _MEMBER)
CONSUMERS = Family(
    "rocketmq_consumer_connections",
    _GAUGE,
    "Consumers, by group, language and version.",
    ("consumer_group", *_MEMBER, "consume_mode", "is_system"),
)
WAITING = Family(
    "rocketmq_processor_watermark",
    _GAUGE,
    "Requests that wait: sends for the disk, pulls for records from the disk, queries for their turn.",
    ("processor",),
)
HELD_PULLS = Family("pyromq_held_pulls", _GAUGE, "Pulls that are held until there is a message for them.")

# The broker and its store.
PERMISSION = Family("rocketmq_broker_permission", _GAUGE, "2 write, 4 read, 6 both.")
TOPICS = Family("rocketmq_topic_number", _GAUGE, "Topics, those of the system included.")
GROUPS = Family("rocketmq_consumer_group_number", _GAUGE, "Groups that have settings.")
NAME_SERVERS = Family("pyromq_name_servers", _GAUGE, "Name servers that this broker has to register with.")
REGISTERED = Family("pyromq_name_servers_registered", _GAUGE, "Name servers that know this broker now.")
TAKES_MESSAGES = Family("pyromq_store_takes_messages", _GAUGE, "1 while messages are stored, 0 while all are refused.")
MISSING_FILES = Family(
    "pyromq_store_missing_files",
    _GAUGE,
    "Older log files, index files and tables that were deleted while the broker runs.",
)
_STORAGE = ("storage_type", "storage_medium")
STORAGE = Family("rocketmq_storage_size", _GAUGE, "Bytes in use of the disk with the data folder.", _STORAGE, "bytes")
DISK_FREE = Family("pyromq_disk_free_bytes", _GAUGE, "Bytes that are free there, for this user.", unit="bytes")
DISK_USED = Family("pyromq_disk_used_ratio", _GAUGE, "How full that disk is, 0 to 1, as retention sees it.")
LOG_BYTES = Family("pyromq_log_bytes", _GAUGE, "Bytes of the commit log that are kept.", unit="bytes")
FLUSH_BEHIND = Family(
    "rocketmq_storage_flush_behind_bytes", _GAUGE, "Bytes of the log that a power cut would take.", _STORAGE, "bytes"
)
INDEX_BEHIND = Family(
    "rocketmq_storage_dispatch_behind_bytes",
    _GAUGE,
    "Bytes of the log whose keys are not indexed yet.",
    _STORAGE,
    "bytes",
)
RESERVED = Family(
    "rocketmq_storage_message_reserve_time", _GAUGE, "Age of the oldest message kept.", _STORAGE, "milliseconds"
)

# What waits to be delivered or decided.
TIMING = Family("rocketmq_timing_messages", _GAUGE, "Messages that wait for a time of their own, by topic.", ("topic",))
DELAYED = Family("pyromq_delay_level_messages", _GAUGE, "Messages that wait in a delay level.", ("level",))
HALF = Family("rocketmq_half_messages", _GAUGE, "Messages of transactions that are not decided.")

FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family))
