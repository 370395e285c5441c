"""Topics and consumer groups at a broker."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


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
