"""Answers administrators' changes of topics, and what they ask to be cleaned up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from pyromq.broker.config import BrokerConfig
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.members.connections import Connections
from pyromq.broker.statistics import Statistics
from pyromq.broker.topics import Topics, check_changeable
from pyromq.errors import BrokerError, TopicNotFound
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.slow_replies import SlowReplies, SlowReply, in_pieces
from pyromq.remoting.bodies import MAX_QUEUES, TopicConfig, TopicList, encode_body
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
from pyromq.store.table_file import complete_when_saved

logger = logger_of(__name__)


class TopicProcessor:
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
        slow_replies: SlowReplies,
        announce: Callable[[TopicConfig], Future[None]],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._connections = connections
        self._config = config
        self._statistics = statistics
        self._slow_replies = slow_replies
        self._announce = announce

    @answers(CreateTopic)
    def create_topic(self, header: CreateTopic, call: Call) -> Future[Reply]:
        """Create the topic or replace its settings; answers when disk and name servers have it. Order is theirs."""
        check_changeable(self._topics, header.topic)
        _check_numbers(header)
        if header.topic in self._topics.leaving:
            raise BrokerError(f"topic[{header.topic}] is being deleted, create it in a moment")
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
    def delete_topic(self, header: DeleteTopic, call: Call) -> Reply | Future[Reply]:
        """Forget the topic, its queues and where groups are in it; its records stay in the log until that is cleaned.

        Answered when no crash brings them back. Until then no topic of the name can be made.

        Who consumes it is told to begin again: a topic made again by this name is another one, whose messages would
        else be taken for those consumed before. Upstream forgets no offsets here.
        """
        check_changeable(self._topics, header.topic)
        return self._slow_replies.give(self._deleting(header.topic, call.peer.address), call)

    def _deleting(self, name: str, address: str) -> SlowReply:
        """Offsets, settings and queues go from the disk in this order: no crash leaves those for the next topic."""
        known = self._topics.find(name)
        self._offsets.remove_topic(name)
        saved = self._topics.delete(name, after=self._offsets.unsaved())
        if known is not None:
            self._topics.leaving.add(name)
            logger.info("topic %s deleted by %s", name, address)
        try:
            if saved is not None:
                yield saved
                saved.result()
            if known is not None:
                self._connections.begin_again(name, self._queues(known))
            noted = self._store.delete_topic(name)
            self._statistics.forget_topic(name)
            yield noted
        finally:
            if known is not None:
                self._topics.leaving.discard(name)
        return Reply()

    def _queues(self, topic: TopicConfig) -> list[MessageQueue]:
        count = max(topic.read_queues, topic.write_queues)
        return [MessageQueue(topic.name, self._config.name, queue_id) for queue_id in range(count)]

    @answers(AllTopics)
    def topics(self, header: AllTopics, call: Call) -> Reply | Future[Reply]:
        return self._slow_replies.give(in_pieces(self._topics.table()), call)

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
    def clean_topics(self, header: CleanTopics, call: Call) -> Reply | Future[Reply]:
        """Remove the queues of topics that are gone; those of transactions belong to no topic and stay."""
        return self._slow_replies.give(self._cleaning(), call)

    def _cleaning(self) -> SlowReply:
        for name in self._store.topics():
            if self._topics.find(name) is None and not self._topics.is_system(name):
                yield self._store.delete_topic(name)
        return Reply()


def _check_numbers(header: CreateTopic) -> None:
    for name, value in (("readQueueNums", header.read_queues), ("writeQueueNums", header.write_queues)):
        if not 0 <= value <= MAX_QUEUES:
            raise BrokerError(f"topic[{header.topic}]: {name} is {value}; it must be 0 to {MAX_QUEUES}")
    if not 0 <= header.permission <= 15:
        raise BrokerError(f"topic[{header.topic}]: perm is {header.permission}; it must be 0 to 15")
