"""Answers administrators' requests to create, change, delete and list topics, and to clean up queues."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from pyromq.broker.shared_state import SharedState
from pyromq.broker.topic_attributes import changed_attributes
from pyromq.broker.topics import check_changeable
from pyromq.errors import BrokerError, TopicNotFound
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.names import pop_retry_topic
from pyromq.net.slow_replies import in_pieces
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
from pyromq.slow_work import Turns, completed
from pyromq.store.table_file import saved_or_undone

logger = logger_of(__name__)


class TopicProcessor:
    """Creates, changes, lists and deletes topics.

    `_announce` registers one topic with the name servers; its future completes when the reachable name servers know the
    topic.
    """

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._connections = state.connections
        self._config = state.config
        self._statistics = state.statistics
        self._announce = state.registering.announce
        self._deleted = state.deleted_topics
        self._when_kept = state.confirmation.when_kept
        self._turns = Turns()  # changes of one topic wait for each other

    @answers(CreateTopic)
    async def create_topic(self, header: CreateTopic, call: Call) -> Reply:
        """Create the topic or replace its settings; reply when the change is on disk and the name servers know it.

        The topic's order setting is kept: only name servers change this setting. Attributes that the request does not
        name are kept, too. A change that cannot be saved is undone.
        """
        check_changeable(self._topics, header.topic)
        _check_numbers(header)
        if header.topic in self._topics.leaving:
            raise BrokerError(f"topic[{header.topic}] is being deleted; try again later")
        return await self._turns.run(partial(self._create, header, call), header.topic)

    async def _create(self, header: CreateTopic, call: Call) -> Reply:
        await self._on_disk(header.topic)
        known = self._topics.find(header.topic)
        topic = TopicConfig(
            name=header.topic,
            read_queues=header.read_queues,
            write_queues=header.write_queues,
            permission=header.permission,
            filter_type=header.filter_type,
            sys_flag=header.sys_flag or 0,
            order=known is not None and known.order,
            attributes=changed_attributes(known, header.topic, header.attributes) or UNSET,
        )
        saved = self._topics.put(topic)
        await saved_or_undone(saved, partial(self._topics.undo, topic.name, known, refused=topic))
        logger.info("topic %s %s by %s", topic.name, "changed" if known else "created", call.peer.address)
        kept = self._when_kept(saved)
        await completed(self._announce(topic))
        self._connections.notify_consumers(topic.name)
        await completed(kept)
        return Reply()

    async def _on_disk(self, name: str) -> None:
        """Wait until an auto-created topic is on disk, so that a refused change of the topic can be undone."""
        if (saved := self._topics.saved(name)) is not None:
            await completed(saved)

    @answers(DeleteTopic)
    async def delete_topic(self, header: DeleteTopic, call: Call) -> Reply:
        """Delete the topic, its queues, the offsets of groups in it, and the retry topics of groups that popped it.

        Records stay in the log until retention deletes them.

        The reply comes when no crash can restore the topic. Until then the topic cannot be created again. Consumers are
        ordered to reset their offsets. Otherwise they would skip the first messages of a new topic of that name.
        Upstream keeps the offsets. A deletion that cannot be saved is undone.
        """
        name = header.topic
        check_changeable(self._topics, name)
        for group in self._offsets.groups_of(name):
            retries = pop_retry_topic(group, name)
            if self._topics.find(retries) is not None and not self._shares_retries(group, name):
                await self._turns.run(partial(self._delete, retries, call), retries)
        await self._turns.run(partial(self._delete, name, call), name)
        return Reply()

    def _shares_retries(self, group: str, topic: str) -> bool:
        """Return whether another group has this retry topic.

        `a_b` and topic `c` share the retry topic of `a` and topic `b_c`, which is also the retry topic of group
        `a_b_c`.
        """
        name = f"{group}_{topic}"
        words = name.split("_")
        pairs = [("_".join(words[:at]), "_".join(words[at:])) for at in range(1, len(words))]
        is_popped = any(self._offsets.of_topic(*pair) for pair in pairs if pair != (group, topic))
        return is_popped or self._groups.find(name) is not None

    async def _delete(self, name: str, call: Call) -> None:
        # Offsets go first, then settings, then queues: after a crash in between, a new topic inherits no offsets.
        await self._on_disk(name)
        known = self._topics.find(name)
        removed = self._offsets.remove_topic(name)
        saved = self._topics.delete(name, after=self._offsets.unsaved())

        def undo() -> None:
            self._topics.undo(name, known, refused=None)
            self._offsets.restore(removed)

        if known is not None:
            self._topics.leaving.add(name)
        try:
            if saved is not None:
                await saved_or_undone(saved, undo)
            if known is not None:
                logger.info("topic %s deleted by %s", name, call.peer.address)
            # The replicas know of the deletion before a queue is deleted. Otherwise a replica may restore the topic.
            await self._note_deletion(name)
            if known is not None:
                self._connections.reset_offsets(name, self._queues(known))
            noted = self._store.delete_topic(name)
            self._statistics.forget_topic(name)
            await completed(noted)
        finally:
            if known is not None:
                self._topics.leaving.discard(name)

    async def _note_deletion(self, name: str) -> None:
        if self._deleted is not None:
            await completed(self._when_kept(self._deleted.note(name)))

    def _queues(self, topic: TopicConfig) -> list[MessageQueue]:
        count = max(topic.read_queues, topic.write_queues)
        return [MessageQueue(topic.name, self._config.name, queue_id) for queue_id in range(count)]

    @answers(AllTopics)
    async def topics(self, header: AllTopics, call: Call) -> Reply:
        return await in_pieces(self._topics.table())

    @answers(TopicSettings)
    def topic(self, header: TopicSettings, call: Call) -> Reply:
        """Return the settings of one topic, which clients of RocketMQ 5 need before they send.

        Raises `TopicNotFound`.
        """
        topic = self._topics.find(header.topic)
        if topic is None:
            raise TopicNotFound(f"No topic in this broker! topic: {header.topic}")
        return Reply(body=encode_body(topic))

    @answers(BrokerSystemTopics)
    def system_topics(self, header: BrokerSystemTopics, call: Call) -> Reply:
        return Reply(body=encode_body(TopicList(topics=self._topics.system_topics())))

    @answers(CleanTopics)
    async def clean_topics(self, header: CleanTopics, call: Call) -> Reply:
        """Delete the queues of topics that no longer exist; queues of system topics stay."""
        for name in self._topics.deleted_among(self._store.topics()):
            await self._note_deletion(name)
            noted = self._store.delete_topic(name)
            self._statistics.forget_topic(name)
            await completed(noted)
        return Reply()


def _check_numbers(header: CreateTopic) -> None:
    for name, value in (("readQueueNums", header.read_queues), ("writeQueueNums", header.write_queues)):
        if not 0 <= value <= MAX_QUEUES:
            raise BrokerError(f"topic[{header.topic}]: {name} is {value}; it must be 0 to {MAX_QUEUES}")
    if not 0 <= header.permission <= 15:
        raise BrokerError(f"topic[{header.topic}]: perm is {header.permission}; it must be 0 to 15")
