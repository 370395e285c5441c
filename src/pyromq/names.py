"""The names of topics and groups: which names are legal, which are reserved, and how derived names are built.

Error texts are those of 4.9.8 where a peer can see them. Source: RocketMQ 4.9.8, TopicValidator, Validators, MixAll.
"""

from __future__ import annotations

import re

from pyromq.errors import IllegalName
from pyromq.excerpt import excerpt

MAX_TOPIC_LENGTH = 127  # limit of a topic's name (bytes): a record has the length in one signed byte
MAX_GROUP_LENGTH = 255

AUTO_CREATE_TOPIC = "TBW102"  # topic whose settings are the template of auto-created topics
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GIVE_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"  # topic of scheduled messages in RocketMQ 5
HALF_RUN_TOPIC = "rmq_sys_half_runs"  # only in pyromq, like LEDGER_TOPIC: topics of batch transactions
LEDGER_TOPIC = "rmq_sys_transaction_ledger"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_TOPIC,
        TRANSACTION_GIVE_UP_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
NOT_FOR_CLIENTS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRANSACTION_GIVE_UP_TOPIC,
        TIMER_TOPIC,
        HALF_RUN_TOPIC,
        LEDGER_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
TOOLS_GROUP = "TOOLS_CONSUMER"  # group of RocketMQ's own tools: every broker has this group, which commits no offsets
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"  # producer group of copied messages and replies
REPLY_SUFFIX = "_REPLY_TOPIC"  # suffix of a cluster's name: the cluster's topic of replies to request messages
SYSTEM_GROUPS = frozenset(
    {
        DEFAULT_PRODUCER_GROUP,
        DEFAULT_CONSUMER_GROUP,
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        INNER_PRODUCER_GROUP,
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    }
)

_ALLOWED = "^[%|a-zA-Z0-9_-]+$"
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def check_topic(topic: str) -> None:
    """Raise `IllegalName` if `topic` may not be a topic name: the text of RocketMQ 4.9.8, with the name in brackets."""
    _check(topic, "topic", MAX_TOPIC_LENGTH, said="The specified topic", blank="The specified topic is blank.")


def check_group(group: str) -> None:
    """Raise `IllegalName` with the text of RocketMQ 4.9.8 if `group` may not be a producer or consumer group."""
    _check(group, "group", MAX_GROUP_LENGTH, said="the specified group", blank="the specified group is blank")


def _check(name: str, kind: str, max_length: int, *, said: str, blank: str) -> None:
    if not isinstance(name, str):
        raise IllegalName(f"{kind}={name!r:.80} is {type(name).__name__}; a {kind}'s name is a string")
    if not name or name.isspace():
        raise IllegalName(blank)
    if not _LEGAL.match(name):
        raise IllegalName(f"{said}[{excerpt(name)}] contains illegal characters, allowing only {_ALLOWED}")
    if len(name) > max_length:
        raise IllegalName(f"{said}[{excerpt(name, 40)}] is longer than {kind} max length {max_length}.")


def check_producer_group(group: str) -> None:
    """Raise `IllegalName` if `group` is illegal or may not be used by producers."""
    check_group(group)
    if group == DEFAULT_PRODUCER_GROUP:
        raise IllegalName(f"producerGroup can not equal {DEFAULT_PRODUCER_GROUP}, please specify another one.")


def check_consumer_group(group: str) -> None:
    """Raise `IllegalName` if `group` is illegal or may not be used by consumers."""
    check_group(group)
    if group == DEFAULT_CONSUMER_GROUP:
        raise IllegalName(f"consumerGroup can not equal {DEFAULT_CONSUMER_GROUP}, please specify another one.")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the retry topic of a group that pops a topic. Source: RocketMQ 5.3.3, KeyBuilder.buildPopRetryTopicV1."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
