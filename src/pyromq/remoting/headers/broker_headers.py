"""Headers of requests about a broker: its settings, state, housekeeping, accounts, topics and consumer groups."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class SaveBrokerSettings(Header):
    """Request to a broker: change settings. The body has `key=value` lines."""

    code = RequestCode.UPDATE_BROKER_CONFIG


class BrokerSettingsResponse(Header):
    """Response to a change of settings: their version, a DataVersion as JSON text.

    `next_start` exists only in pyromq: settings that take effect at the next start, as a JSON object of strings by
    name.
    """

    version: str
    next_start: str | None = None


class BrokerSettings(Header):
    """Request to a broker for all its settings, as `key=value` lines."""

    code = RequestCode.GET_BROKER_CONFIG
    reply_header = BrokerSettingsResponse


class BrokerState(Header):
    """Request to a broker for its runtime figures."""

    code = RequestCode.GET_BROKER_RUNTIME_INFO
    reply_body = bodies.KeyValues


class BrokerSystemTopics(Header):
    """Request to a broker for its system topics."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    reply_body = bodies.TopicList


class CleanQueues(Header):
    """Request to a broker: remove consume queues without messages."""

    code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


class CleanTopics(Header):
    """Request to a broker: remove consume queues of topics that do not exist."""

    code = RequestCode.CLEAN_UNUSED_TOPIC


class DeleteExpiredLogResponse(Header):
    """Response with the number of log segments deleted immediately, and the log offset from which on segments stay.

    Both exist only in pyromq.
    """

    files: int | None = None
    kept_from: int | None = None


class DeleteExpiredLog(Header):
    """Request to a broker: delete expired log segments in the next cleaning rounds.

    `older_than_hours` exists only in pyromq: the age to use instead of the broker's setting.
    """

    code = RequestCode.DELETE_EXPIRED_COMMITLOG
    reply_header = DeleteExpiredLogResponse
    older_than_hours: int | None = None


class SaveAccount(Header):
    """Request: create an account or change its given fields. Lists are `name=PUB|SUB`, joined by commas."""

    code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccount(Header):
    """Request: delete an account."""

    code = RequestCode.DELETE_ACL_CONFIG
    access_key: str


class AccountsVersionResponse(Header):
    """Response with JSON strings: the version of the first ACL file, and the versions of all ACL files by path."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class AccountsVersion(Header):
    """Request for the versions of the ACL files."""

    code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
    reply_header = AccountsVersionResponse


class SaveWhiteList(Header):
    """Request: replace the white list (addresses joined by commas) in one ACL file; "" is the default file."""

    code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    addresses: str = field(name="globalWhiteAddrs")
    file: str = field(name="aclFileFullPath", default="")


class ListAccounts(Header):
    """Request for all accounts and white lists."""

    code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
    reply_body = bodies.AccountTable


class CreateTopic(Header):
    """Request to a broker: create a topic or change its settings."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    read_queues: int = field(name="readQueueNums")
    write_queues: int = field(name="writeQueueNums")
    permission: int = field(name="perm")
    default_topic: str = ""
    filter_type: str = field(name="topicFilterType", default="SINGLE_TAG")
    sys_flag: int | None = field(name="topicSysFlag", default=None)
    order: bool = False
    attributes: str | None = None  # changes of attributes (from RocketMQ 5): `+name=value,-name`


class AllTopics(Header):
    """Request to a broker for all topics with their settings."""

    code = RequestCode.GET_ALL_TOPIC_CONFIG
    reply_body = bodies.TopicConfigTable


class TopicSettings(Header):
    """Request to a broker for the settings of one topic (from RocketMQ 5)."""

    code = RequestCode.GET_TOPIC_CONFIG
    reply_body = bodies.TopicConfig
    topic: str


class DeleteTopic(Header):
    """Request to a broker: delete a topic there."""

    code = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str


class SaveGroup(Header):
    """Request to a broker: create a consumer group or change its settings."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    request_body = bodies.GroupConfig


class AllGroups(Header):
    """Request to a broker for all consumer groups with their settings."""

    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    reply_body = bodies.GroupConfigTable


class DeleteGroup(Header):
    """Request to a broker: delete a consumer group there."""

    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group: str = field(name="groupName")
    remove_offsets: bool = field(name="removeOffset", default=False)
