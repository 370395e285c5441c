"""Answers administrators' changes of topics, and what they ask to be cleaned up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import complete_when_saved, when_saved
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.members.connections import Connections
from pyromq.broker.statistics import Statistics
from pyromq.broker.topics import Topics, check_changeable
from pyromq.errors import BrokerError, TopicNotFound
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import TopicConfig, TopicList, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    AllTopics,
    BrokerSystemTopics,
    CleanTopics,
    CreateTopic,
    DeleteTopic,
    TopicSettings,
)
from pyromq.store.message_store import MessageStore

logger = logging.getLogger(__name__)

MAX_QUEUES = 65_536  # of a topic at one broker; guards against a mistyped number, upstream has no limit


class Administering:
    """Creates, changes, lists and deletes topics.

    `announce` tells the name servers about one topic; its future ends when those that can be reached know it.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        *,
        offsets: ConsumerOffsets,
        connections: Connections,
        statistics: Statistics,
        config: BrokerConfig,
        announce: Callable[[TopicConfig], Future[None]],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._connections = connections
        self._config = config
        self._statistics = statistics
        self._announce = announce

    @answers(CreateTopic)
    def create_topic(self, header: CreateTopic, call: Call) -> Future[Reply]:
        """Create the topic or replace its settings; answers when disk and name servers have it. Order is theirs."""
        check_changeable(self._topics, header.topic)
        _check_numbers(header)
        known = self._topics.find(header.topic)
        topic = TopicConfig(
            name=header.topic,
            read_queues=header.read_queues,
            write_queues=header.write_queues,
            permission=header.permission,
            filter_type=header.filter_type,
            sys_flag=header.sys_flag or 0,
            order=known is not None and known.order,
        )
        saved = self._topics.put(topic)
        logger.info("topic %s %s by %s", topic.name, "changed" if known else "created", call.peer.address)
        answered: Future[Reply] = Future()

        def known_to_name_servers(_: Future[None]) -> None:
            complete_when_saved(saved, Reply(), answered)
            self._connections.tell_consumers(topic.name)

        self._announce(topic).add_done_callback(known_to_name_servers)
        return answered

    @answers(DeleteTopic)
    def delete_topic(self, header: DeleteTopic, call: Call) -> Future[Reply]:
        """Forget the topic, its queues and where groups are in it; its records stay in the log until that is cleaned.

        Answered when no crash brings them back.

        Who consumes it is told to begin again: a topic made again by this name is another one, whose messages would
        else be taken for those consumed before. Upstream forgets no offsets here.
        """
        check_changeable(self._topics, header.topic)
        known = self._topics.find(header.topic)
        self._offsets.remove_topic(header.topic)
        self._offsets.persist()  # before the topic goes: no crash leaves offsets for the next one of this name
        if known is not None:
            self._topics.delete(header.topic)
            self._connections.begin_again(header.topic, self._queues(known))
            logger.info("topic %s deleted by %s", header.topic, call.peer.address)
        noted = self._store.delete_topic(header.topic)
        self._statistics.forget_topic(header.topic)
        return when_saved(noted, Reply())

    def _queues(self, topic: TopicConfig) -> list[MessageQueue]:
        count = max(topic.read_queues, topic.write_queues)
        return [MessageQueue(topic.name, self._config.name, queue_id) for queue_id in range(count)]

    @answers(AllTopics)
    def topics(self, header: AllTopics, call: Call) -> Reply:
        return Reply(body=encode_body(self._topics.table()))

    @answers(TopicSettings)
    def topic(self, header: TopicSettings, call: Call) -> Reply:
        """RocketMQ 5's clients ask for a topic's settings first; without an answer they fail."""
        topic = self._topics.find(header.topic)
        if topic is None:
            raise TopicNotFound(f"No topic in this broker! topic: {header.topic}")
        return Reply(body=encode_body(topic))

    @answers(BrokerSystemTopics)
    def system_topics(self, header: BrokerSystemTopics, call: Call) -> Reply:
        return Reply(body=encode_body(TopicList(topics=self._topics.system_topics())))

    @answers(CleanTopics)
    def clean_topics(self, header: CleanTopics, call: Call) -> Reply:
        """Remove the queues of topics that are gone; those of transactions belong to no topic and stay."""
        for name in list(self._store.topics()):
            if self._topics.find(name) is None and not self._topics.is_system(name):
                self._store.delete_topic(name)
        return Reply()


def _check_numbers(header: CreateTopic) -> None:
    for name, value in (("readQueueNums", header.read_queues), ("writeQueueNums", header.write_queues)):
        if not 0 <= value <= MAX_QUEUES:
            raise BrokerError(f"topic[{header.topic}]: {name} is {value}; it must be 0 to {MAX_QUEUES}")
    if not 0 <= header.permission <= 15:
        raise BrokerError(f"topic[{header.topic}]: perm is {header.permission}; it must be 0 to 15")
