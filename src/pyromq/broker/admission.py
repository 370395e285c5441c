"""Checks whether a sender may write to a topic, and chooses the queue.

All processors that store clients' messages use this module.
"""

from __future__ import annotations

import random
from concurrent.futures import Future

from pyromq.broker.config import BrokerConfig
from pyromq.broker.topics import Topics, describe
from pyromq.errors import BrokerError, NoPermission, TopicNotFound
from pyromq.names import NOT_FOR_CLIENTS, RETRY_PREFIX, check_topic
from pyromq.remoting.bodies import TopicConfig
from pyromq.remoting.codes import UNIT, UNIT_SUBSCRIPTION, Permission
from pyromq.remoting.command import Call
from pyromq.remoting.headers import SendHalfRun, SendMessage, SendReplyMessage
from pyromq.store.table_file import R, when_saved


class Admission:
    """Admits messages of senders to topics. A missing topic is created, if that is allowed."""

    def __init__(self, topics: Topics, config: BrokerConfig) -> None:
        self.unsaved = topics.unsaved  # topics whose settings are not on disk yet: replies to their senders wait
        self._topics = topics
        self._config = config
        self._find_topic = topics.find

    def topic_for(self, header: SendMessage | SendReplyMessage | SendHalfRun, call: Call) -> TopicConfig:
        """Return the settings of the request's topic, created if allowed.

        Raises the error that refuses the send; checks run in upstream's order.
        """
        name = header.topic
        topic = self._find_topic(name)
        if topic is not None and topic.order:
            self.check_writable()
        if topic is None:  # the name of an existing topic was checked when it was created
            check_topic(name)
        if name in NOT_FOR_CLIENTS:
            raise NoPermission(f"Sending message to topic[{name}] is forbidden.")
        if topic is None:
            topic = self._new_topic(header, call)
        if header.queue_id >= topic.write_queues and header.queue_id >= topic.read_queues:
            raise BrokerError(
                f"request queueId[{header.queue_id}] is illegal, {describe(topic)} Producer: {call.peer.address}"
            )
        return topic

    def check_writable(self) -> None:
        """Raise `NoPermission` if this broker is not writable.

        As upstream, called for ordered topics and retries only.
        """
        if not self._config.permission & Permission.WRITE:
            raise NoPermission(f"the broker[{self._config.advertised_ip}] sending message is forbidden")

    def check_transactions(self) -> None:
        """Raise `NoPermission` if this broker accepts no half messages."""
        if self._config.reject_transactions:
            raise NoPermission(f"the broker[{self._config.advertised_ip}] sending transaction message is forbidden")

    def any_queue(self, topic: TopicConfig) -> int:
        """Return a random write queue's id, for a message whose sender names no queue.

        Raises `BrokerError` if there is none.
        """
        if topic.write_queues < 1:
            raise BrokerError(f"there is no queue to write to, {describe(topic)}; give it one")
        return random.randrange(topic.write_queues)

    def when_saved(self, topic: str, reply: R | Future[R]) -> R | Future[R]:
        """Return the reply, or a future of the reply that waits until the settings of a new topic are on disk."""
        saved = self._topics.saved(topic)
        return reply if saved is None else when_saved(saved, reply)

    def _new_topic(self, header: SendMessage | SendReplyMessage | SendHalfRun, call: Call) -> TopicConfig:
        """Create the topic with the settings of the sender's default topic. A retry topic needs no default topic."""
        is_retry = header.topic.startswith(RETRY_PREFIX)
        sys_flag = (UNIT_SUBSCRIPTION if is_retry else UNIT) if header.unit_mode else 0
        try:
            return self._topics.for_send(
                header.topic,
                default_topic=header.default_topic,
                asked_queues=header.default_topic_queue_count,
                peer=call.peer,
                sys_flag=sys_flag,
            )
        except TopicNotFound:
            if not is_retry:
                raise
            return self._topics.for_group_retry(header.topic, 1, sys_flag=sys_flag, sender=call.peer)
