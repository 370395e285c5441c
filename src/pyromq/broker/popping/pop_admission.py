"""Checks pop requests: names, permissions, and the ranges of numbers."""

from __future__ import annotations

from pyromq.broker.config import BrokerConfig
from pyromq.broker.members.consumer_groups import ConsumerGroups
from pyromq.broker.topics import FAQ, Topics
from pyromq.errors import BrokerError, GroupNotFound, NoPermission, TopicNotFound
from pyromq.names import MAX_TOPIC_LENGTH, RETRY_PREFIX, pop_retry_topic
from pyromq.remoting.bodies import TopicConfig
from pyromq.remoting.codes import Permission
from pyromq.remoting.dispatch import Peer
from pyromq.remoting.headers.pop_headers import MAX_INVISIBLE_SECONDS, MAX_POPPED

MAX_INVISIBLE_MS = int(MAX_INVISIBLE_SECONDS * 1000)
ANY_QUEUE = -1
MAX_ID_LENGTH = 255  # limit of client ids and attempt ids: each pop in memory and in the journal may have one


class PopAdmission:
    """Decides whether a group may pop a topic."""

    def __init__(self, config: BrokerConfig, topics: Topics, groups: ConsumerGroups) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups

    def check(self, group: str, topic: str, queue_id: int, peer: Peer | None) -> TopicConfig:
        """Return the topic's settings. Raises `NoPermission`, `TopicNotFound`, `GroupNotFound` or `BrokerError`.

        Source: RocketMQ 5.3.3, PopMessageProcessor and AckMessageProcessor.
        """
        if not self._config.permission & Permission.READ:
            raise NoPermission(f"the broker[{self._config.advertised_ip}] pop message is forbidden")
        known = self._topics.find(topic)
        if known is None:
            raise TopicNotFound(f"topic[{topic}] not exist, apply first please! {FAQ}")
        if not known.permission & Permission.READ:
            raise NoPermission(f"the topic[{topic}] peeking message is forbidden")
        if not ANY_QUEUE <= queue_id < known.read_queues:
            raise BrokerError(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{known.read_queues}]; it"
                " must be the id of a queue, or -1 for all"
            )
        settings = self._groups.find(group, peer)
        if settings is None:
            raise GroupNotFound(f"subscription group [{group}] does not exist, {FAQ}")
        if not settings.consume_enabled:
            raise NoPermission(f"subscription group no permission, {group}")
        if not topic.startswith(RETRY_PREFIX) and len(name := pop_retry_topic(group, topic)) > MAX_TOPIC_LENGTH:
            raise BrokerError(
                f"group {group} cannot pop topic {topic}: the name of its retry topic, {name}, would have {len(name)}"
                f" characters; the limit is {MAX_TOPIC_LENGTH}: use shorter names, or a push consumer that pulls"
            )
        return known


def check_count(count: int) -> None:
    if not 0 < count <= MAX_POPPED:
        raise BrokerError(f"maxMsgNums={count}: a pop returns 1 to {MAX_POPPED} messages")


def check_invisible(invisible_ms: int) -> None:
    if not 0 <= invisible_ms <= MAX_INVISIBLE_MS:
        raise BrokerError(
            f"invisibleTime={invisible_ms}: it must be 0 to {MAX_INVISIBLE_MS} ms (12 hours); change it again if the"
            " message needs more time"
        )


def check_ids(client_id: str | None, attempt_id: str | None) -> None:
    for name, text in (("renewedFor", client_id), ("attemptId", attempt_id)):
        if text is not None and not 0 < len(text) <= MAX_ID_LENGTH:
            raise BrokerError(f"{name} has {len(text)} characters: an id has 1 to {MAX_ID_LENGTH}")
