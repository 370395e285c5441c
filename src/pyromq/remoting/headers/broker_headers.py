"""A broker's settings, state, housekeeping and accounts, its topics and its consumer groups."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class SaveBrokerSettings(Header):
    """Change settings; the body holds `key=value` lines."""

    code = RequestCode.UPDATE_BROKER_CONFIG


class BrokerSettingsResponse(Header):
    """The version of the settings, a DataVersion as JSON text.

    `next_start` is ours: settings that take effect at the next start, as a JSON object of texts by name.
    """

    version: str
    next_start: str | None = None


class BrokerSettings(Header):
    """All settings as `key=value` lines."""

    code = RequestCode.GET_BROKER_CONFIG
    reply_header = BrokerSettingsResponse


class BrokerState(Header):
    """A broker's runtime figures."""

    code = RequestCode.GET_BROKER_RUNTIME_INFO
    reply_body = bodies.KeyValues


class BrokerSystemTopics(Header):
    """A broker's system topics."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    reply_body = bodies.TopicList


class CleanQueues(Header):
    """Remove consume queues without messages."""

    code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


class CleanTopics(Header):
    """Remove consume queues of topics that do not exist."""

    code = RequestCode.CLEAN_UNUSED_TOPIC


class DeleteExpiredLogResponse(Header):
    """Both fields are ours: the number of files deleted at once, and the log offset from which on files stay."""

    files: int | None = None
    kept_from: int | None = None


class DeleteExpiredLog(Header):
    """Delete expired log segments in the next cleaning rounds.

    `older_than_hours` is ours: the age to use instead of the broker's setting.
    """

    code = RequestCode.DELETE_EXPIRED_COMMITLOG
    reply_header = DeleteExpiredLogResponse
    older_than_hours: int | None = None


class SaveAccount(Header):
    """Create an account or change its given fields; lists are `name=PUB|SUB`, joined by commas."""

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
    """Delete an account."""

    code = RequestCode.DELETE_ACL_CONFIG
    access_key: str


class AccountsVersionResponse(Header):
    """JSON texts: the version of the first file, and the versions of all files by path."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class AccountsVersion(Header):
    """Return the versions of the account files."""

    code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
    reply_header = AccountsVersionResponse


class SaveWhiteList(Header):
    """Replace the addresses, joined by commas, in one file; "" is the default file."""

    code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    addresses: str = field(name="globalWhiteAddrs")
    file: str = field(name="aclFileFullPath", default="")


class ListAccounts(Header):
    """All accounts and white lists."""

    code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
    reply_body = bodies.AccountTable


class CreateTopic(Header):
    """Create a topic or change its settings."""

    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    read_queues: int = field(name="readQueueNums")
    write_queues: int = field(name="writeQueueNums")
    permission: int = field(name="perm")
    default_topic: str = ""
    filter_type: str = field(name="topicFilterType", default="SINGLE_TAG")
    sys_flag: int | None = field(name="topicSysFlag", default=None)
    order: bool = False


class AllTopics(Header):
    """All topics with their settings."""

    code = RequestCode.GET_ALL_TOPIC_CONFIG
    reply_body = bodies.TopicConfigTable


class TopicSettings(Header):
    """One topic's settings (RocketMQ 5's request)."""

    code = RequestCode.GET_TOPIC_CONFIG
    reply_body = bodies.TopicConfig
    topic: str


class DeleteTopic(Header):
    """Delete a topic at a broker."""

    code = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str


class SaveGroup(Header):
    """Create a consumer group or change its settings."""

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    request_body = bodies.GroupConfig


class AllGroups(Header):
    """All consumer groups with their settings."""

    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    reply_body = bodies.GroupConfigTable


class DeleteGroup(Header):
    """Delete a consumer group."""

    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group: str = field(name="groupName")
    remove_offsets: bool = field(name="removeOffset", default=False)
