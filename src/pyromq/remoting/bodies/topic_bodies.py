"""JSON bodies with settings of topics and consumer groups, and with accounts.

Source: RocketMQ 4.9.8, TopicConfig, SubscriptionGroupConfig.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from pyromq.remoting.bodies.body import Body, DataVersion

MAX_QUEUES = 65_536  # limit of queues of a topic at one broker, against mistyped numbers; RocketMQ has no limit
SINGLE_TAG = "SINGLE_TAG"  # default filter type of a topic; the other filter type is MULTI_TAG

MESSAGE_TYPE = "message.type"  # attribute of a topic (from RocketMQ 5): the type of its messages
MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction", "mixed")  # on the wire in upper case


class TopicConfig(Body):
    """A topic's settings at one broker."""

    name: str = field(name="topicName")
    read_queues: int = field(name="readQueueNums", default=16)
    write_queues: int = field(name="writeQueueNums", default=16)
    permission: int = field(name="perm", default=6)
    filter_type: str = field(name="topicFilterType", default=SINGLE_TAG)
    sys_flag: int = field(name="topicSysFlag", default=0)
    order: bool = False
    # From RocketMQ 5. A topic without attributes is written without the field, as by RocketMQ 4.
    attributes: dict[str, str] | UnsetType = UNSET

    @property
    def message_type(self) -> str | None:
        """The type of the topic's messages, one of `MESSAGE_TYPES`; None if the topic has no type."""
        kind = (self.attributes or {}).get(MESSAGE_TYPE, "").lower()
        return kind if kind in MESSAGE_TYPES else None


class TopicConfigTable(Body):
    """Body of a response: all topics of a broker with their settings."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] = field(name="topicConfigTable", default_factory=dict)


class GroupConfig(Body):
    """A consumer group's settings at one broker."""

    name: str = field(name="groupName")
    consume_enabled: bool = field(name="consumeEnable", default=True)
    consume_from_min_enabled: bool = field(name="consumeFromMinEnable", default=True)
    broadcast_enabled: bool = field(name="consumeBroadcastEnable", default=True)
    notify_changes: bool = field(name="notifyConsumerIdsChangedEnable", default=True)
    retry_queues: int = field(name="retryQueueNums", default=1)
    retry_max_times: int = 16
    broker_id: int = 0
    slow_broker_id: int = field(name="whichBrokerWhenConsumeSlowly", default=1)
    # From RocketMQ 5: members that pop get the messages of each queue in order.
    orderly: bool | UnsetType = field(name="consumeMessageOrderly", default=UNSET)

    @property
    def is_orderly(self) -> bool:
        return self.orderly is True


class GroupConfigTable(Body):
    """Body of a response: all consumer groups of a broker with their settings."""

    data_version: DataVersion = field(default_factory=DataVersion)
    groups: dict[str, GroupConfig] = field(name="subscriptionGroupTable", default_factory=dict)


class AccountEntry(Body):
    """An account of the access control. Our brokers send stars instead of the secret key."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AccountTable(Body):
    """Body of a response: all accounts, and the addresses that need no account."""

    white_list: list[str] = field(name="globalWhiteAddrs", default_factory=list)
    accounts: list[AccountEntry] = field(name="plainAccessConfigs", default_factory=list)
