"""The channel: publishing, durable queues by pop, queues of this process, acknowledgement."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any

import msgspec
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from pyromq.celery.inbox import Inbox
from pyromq.celery.process_queues import Arrived, OwnMessage, ProcessQueues
from pyromq.celery.queue_names import exchange_topic, queue_topic
from pyromq.celery.rocketmq_connection import RocketConnection
from pyromq.celery.task_feed import TaskFeed
from pyromq.celery.task_payload import eta_ms, is_expired, payload
from pyromq.errors import IllegalMessage, ReceiptHandleExpired, UsageError
from pyromq.logs import logger_of
from pyromq.message import Message, StoredMessage

logger = logger_of(__name__)

MAX_UNLIMITED = 32  # messages that wait for their callback if the prefetch count is 0, which means no limit
TRANSIENT = 1  # delivery mode of messages that need not survive
EARLY_SECONDS = 1.0  # a task that arrives this much before its ETA is delayed again by the broker


class TaskQoS(virtual.QoS):
    """The unacknowledged messages of a channel. The broker redelivers them if this process dies."""

    def ack(self, delivery_tag: str) -> None:
        try:
            self.channel.end_task(delivery_tag)
        finally:  # also after a failure: the broker redelivers the message, so the channel has room for another one
            super().ack(delivery_tag)
            self.channel.wake()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            self.channel.reject_task(delivery_tag, requeue=requeue)
        finally:
            self._quick_ack(delivery_tag)
            self.channel.wake()


class RocketChannel(virtual.Channel):
    """A channel of kombu.

    Methods are called in the thread of the connection. Feeds and readers have their own threads.
    """

    QoS = TaskQoS
    supports_fanout = True

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._pid = os.getpid()
        self._inbox: Inbox = connection.inbox
        self._feed: TaskFeed | None = None
        self._arrived: dict[str, Arrived] = {}  # by consumed queue of this process
        self._no_ack: set[str] = set()
        self._received: dict[str, StoredMessage] = {}  # by delivery tag
        self._taken: dict[str, tuple[str, OwnMessage]] = {}  # of queues of this process, by delivery tag
        self._waiting: dict[str, deque[StoredMessage]] = {}  # messages of each queue without a callback yet
        self._is_delivering = False  # while True, the delivered message is in neither `_waiting` nor `qos`
        self._count = 0

    @property
    def rocketmq(self) -> RocketConnection:
        found: RocketConnection = self.connection.rocketmq
        return found

    @property
    def _own(self) -> ProcessQueues:
        found: ProcessQueues = self.connection.process_queues
        return found

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Store a message in each durable queue that it is routed to, or send it to the queues of single processes.

        A message that no declared queue takes is sent to the queues of single processes if it is transient or a reply.
        The same holds at an exchange that this connection has not declared, if the exchange has such queues. Any other
        message raises `UsageError`, since it would be lost. The default exchange accepts every message, because the
        routing key names the queue.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        routed = self._routed(exchange, routing_key)
        durable = [queue for queue in routed if queue not in self._own]
        is_transient = message["properties"].get("delivery_mode") == TRANSIENT or (
            not routed and not exchange and self._is_reply(message, routing_key)
        )
        if not exchange and not routed and not is_transient:
            durable = [routing_key]
        for queue in durable:
            self._put(queue, message)
        is_broadcast = self._kind(exchange) == "fanout" or len(durable) < len(routed)
        if is_broadcast or (not durable and (is_transient or self._kind(exchange) == "topic")):
            self._broadcast(exchange, message)
        elif not durable:
            raise UsageError(
                f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r} on this connection:"
                " declare the queue before publishing"
            )

    def _is_reply(self, message: dict[str, Any], routing_key: str) -> bool:
        """Return whether a message is not a task but answers one, and its queue is not durable."""
        is_answer = message["properties"].get("correlation_id") and not message["headers"].get("task")
        return bool(is_answer) and not self._has_queue(routing_key)

    def _kind(self, exchange: str) -> str:
        """Return the type of an exchange. An undeclared one that other processes read is a fanout exchange."""
        if exchange in self.connection.state.exchanges:
            return str(self.typeof(exchange).type)
        return "fanout" if exchange and self.rocketmq.has_topic(exchange_topic(exchange)) else "direct"

    def _routed(self, exchange: str, routing_key: str) -> list[str]:
        """Return the queues known to this connection that take a message."""
        if not exchange:
            return [routing_key] if routing_key in self.connection.known_queues or routing_key in self._own else []
        if exchange not in self.connection.state.exchanges:
            return []
        return sorted(self.typeof(exchange).lookup(self.get_table(exchange), exchange, routing_key, None))

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        priority = self._step(queue, message)
        deliver_at = eta_ms(message)
        now_ms = time.time() * 1000
        latest_ms = int(now_ms + self.rocketmq.max_delay * 1000)
        stored = Message(
            self.rocketmq.queue_topic(queue, priority),
            msgspec.json.encode(message),
            tags=_word(message["headers"].get("task")),
            keys=_word(message["headers"].get("id") or message["properties"].get("correlation_id")) or (),
            deliver_at=min(deliver_at, latest_ms) if deliver_at is not None and deliver_at > now_ms else None,
        )
        self._send(stored, f"queue {queue!r}", setting="task_compression")

    def _broadcast(self, exchange: str, message: dict[str, Any]) -> None:
        self.rocketmq.create_topic(exchange_topic(exchange), queues=1)
        stored = Message(exchange_topic(exchange), msgspec.json.encode(message))
        self._send(stored, f"exchange {exchange!r}", setting="result_compression")

    def _send(self, message: Message, target: str, *, setting: str) -> None:
        try:
            self.rocketmq.send(message)
        except IllegalMessage as error:
            advice = f"set {setting}='gzip', or keep the data elsewhere and send its key"
            raise IllegalMessage(f"message for {target}: {error}; {advice}") from None

    def _step(self, queue: str, message: dict[str, Any]) -> int:
        """Return the priority of a message for this queue, rounded to a priority that has its own topic."""
        steps: tuple[int, ...] = self.connection.known_queues.get(queue, (0,))
        return max(step for step in steps if step <= self._get_message_priority(message))

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Keep text, for example JSON, as it is: base64 would be longer, and unreadable in the console."""
        return (body, "utf-8") if isinstance(body, str) else super().encode_body(body, encoding)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Return the arguments of a queue with its largest priority and its expiry, under RabbitMQ's names."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _new_queue(
        self, queue: str, auto_delete: bool = False, exclusive: bool = False, arguments: Any = None, **kwargs: Any
    ) -> None:
        arguments = arguments or {}
        if auto_delete or exclusive or "x-expires" in arguments:
            self._own.declare(queue, is_auto_deleted=auto_delete, rocketmq=self.rocketmq)
            return
        steps = self.rocketmq.priority_steps if arguments.get("x-max-priority") else (0,)
        for step in steps:
            self.rocketmq.create_topic(self.rocketmq.queue_topic(queue, step))
        self.connection.known_queues[queue] = steps

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        if queue in self._own:
            self._own.bind(exchange, self._kind(exchange), routing_key, pattern, queue, rocketmq=self.rocketmq)

    def _deliver_own(self, queue: str) -> bool:
        """Run the callback for the next message of a queue of this process, if it is consumed here."""
        if self.closed or queue not in self._active_queues or (raw := self._take_own(queue)) is None:
            return False
        if queue in self._no_ack:
            self.end_task(raw["properties"]["delivery_tag"])
        self.connection._deliver(raw, queue)
        return True

    def _take_own(self, queue: str) -> dict[str, Any] | None:
        """Return the next message of a queue of this process, which is restored unless it is acknowledged."""
        if (message := self._own.take(queue)) is None:
            return None
        tag = message.raw["properties"]["delivery_tag"] = self._next_delivery_tag()
        self._taken[tag] = queue, message
        return message.raw

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if no_ack:
            self._no_ack.add(queue)
        if queue in self._own:
            arrived = self._arrived[queue] = partial(self._inbox.put, partial(self._deliver_own, queue))
            self._own.consume(queue, arrived)
        else:
            self._tasks.add(queue, self._topics_of(queue))

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._no_ack.discard(queue)
            if (arrived := self._arrived.pop(queue, None)) is not None:
                self._own.cancel(queue, arrived)
            elif self._feed is not None:
                self._feed.remove(queue)
                for message in iter(partial(self._next_waiting, queue), None):
                    self._feed.give_back(message)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.wake()

    @property
    def _tasks(self) -> TaskFeed:
        if self._feed is None:
            self._feed = TaskFeed(
                self.rocketmq.simple_consumer(),
                visibility_timeout=self.rocketmq.visibility_timeout,
                room=self._room,
                deliver=self._arrived_in_queue,
            )
        return self._feed

    def _topics_of(self, queue: str) -> list[str]:
        if queue not in self.connection.known_queues:
            self._new_queue(queue)
        return [queue_topic(queue, step) for step in reversed(self.connection.known_queues[queue])]

    def _room(self) -> int:
        """Return how many messages the channel may still receive. Called in the feed's thread."""
        allowed = self.qos.can_consume_max_estimate()
        return (
            (MAX_UNLIMITED if allowed is None else allowed)
            - self._is_delivering
            - sum(map(len, list(self._waiting.values())))
        )

    def _arrived_in_queue(self, queue: str, message: StoredMessage) -> None:
        """Called in the feed's thread."""
        self._waiting.setdefault(queue, deque()).append(message)
        self._inbox.put(partial(self._deliver_task, queue))

    def _next_waiting(self, queue: str) -> StoredMessage | None:
        waiting = self._waiting.get(queue)
        return waiting.popleft() if waiting else None

    def _deliver_task(self, queue: str) -> bool:
        """Run the callback for the next message of a queue; its consumer may be cancelled, or the channel closed."""
        self._is_delivering = True
        try:
            if self.closed or (message := self._next_waiting(queue)) is None:
                return False
            if (raw := self._accepted(queue, message)) is None:
                return False
            if queue in self._no_ack:
                self.end_task(raw["properties"]["delivery_tag"])
            self.connection._deliver(raw, queue)
            return True
        finally:
            self._is_delivering = False
            self.wake()

    def _accepted(self, queue: str, message: StoredMessage) -> dict[str, Any] | None:
        """Return the payload with a new delivery tag. A task before its ETA is delayed again, and None returned.

        Returns None for an expired message, too.
        """
        raw = payload(message)
        if raw is None:
            self._tasks.dead_letter(message, "the body is not a message of kombu")
            return None
        if is_expired(raw, message.born_ms) and not raw["headers"].get("expires"):  # a worker revokes expired tasks
            self._tasks.ack(message)
            return None
        due_ms = eta_ms(raw)
        if due_ms is not None and due_ms > (time.time() + EARLY_SECONDS) * 1000 and message.reconsume_times == 0:
            self._put(queue, raw)
            self._tasks.ack(message)
            return None
        self._count += 1
        tag = raw["properties"]["delivery_tag"] = f"{message.message_id}-{self._count}"
        raw["properties"]["delivery_info"]["redelivered"] = message.reconsume_times > 0
        self._received[tag] = message
        return raw

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Return one message without waiting. Raises `Empty`."""
        if queue in self._own:
            if (own := self._take_own(queue)) is None:
                raise Empty
            return own
        topics = self._topics_of(queue)
        while (message := self._tasks.get(topics)) is not None:
            if (raw := self._accepted(queue, message)) is not None:
                return raw
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.end_task(message.delivery_tag)
        return message

    def end_task(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self._taken.pop(delivery_tag, None)
        message = self._received.pop(delivery_tag, None)
        if message is None or os.getpid() != self._pid:
            return
        try:
            self._tasks.ack(message)
        except ReceiptHandleExpired as error:
            logger.warning("message %s is acknowledged too late and comes again: %s", message.message_id, error)

    def reject_task(self, delivery_tag: str, *, requeue: bool) -> None:
        """Make a message visible again, or with `requeue` False a dead letter. A reply never becomes a dead letter."""
        if (taken := self._taken.pop(delivery_tag, None)) is not None and requeue:
            self._own.restore(*taken)
        message = self._received.pop(delivery_tag, None)
        if message is None or os.getpid() != self._pid:
            return
        if requeue:
            self._tasks.give_back(message)
        else:
            self._tasks.dead_letter(message, "rejected")

    def _restore(self, message: Any) -> None:
        if (taken := self._taken.pop(message.delivery_tag, None)) is not None:
            self._own.restore(*taken)
        if (stored := self._received.pop(message.delivery_tag, None)) is not None and os.getpid() == self._pid:
            self._tasks.give_back(stored)

    def wake(self) -> None:
        if self._feed is not None:
            self._feed.wake()

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self._own or self.rocketmq.has_topic(queue_topic(queue))

    def _size(self, queue: str) -> int:
        if queue in self._own:
            return 0
        steps = self.connection.known_queues.get(queue, (0,))
        return sum(self.rocketmq.waiting(queue_topic(queue, step)) for step in steps)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue. Only a passive declaration counts its messages: that takes several requests."""
        if passive or not queue:
            return super().queue_declare(queue, passive=passive, **kwargs)
        self._new_queue(queue, **kwargs)
        return virtual.base.queue_declare_ok_t(queue, 0, 0)

    def _purge(self, queue: str) -> int:
        """Acknowledge all visible messages of a queue, and return their number."""
        purged = 0
        with suppress(Empty):
            while True:
                raw = self._get(queue)
                self.end_task(raw["properties"]["delivery_tag"])
                purged += 1
        return purged

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        self._delete(queue)
        self.state.queue_bindings_delete(queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if queue in self._own:
            self._own.delete(queue)
            return
        steps = self.connection.known_queues.pop(queue, (0,))
        for step in steps:
            self.rocketmq.delete_topic(queue_topic(queue, step))

    def close(self) -> None:
        if self.closed:
            return
        if os.getpid() != self._pid:  # a fork of the process: the clients belong to the parent
            self._feed, self._arrived, self._received = None, {}, {}
            super().close()
            return
        if self._feed is not None:
            self._feed.close()  # makes unacknowledged messages visible
            self._feed = None
        self._received.clear()
        for queue, arrived in self._arrived.items():
            self._own.cancel(queue, arrived)
        self._arrived.clear()
        super().close()


def _word(text: Any) -> str | None:
    """Return the value if it is a legal tag or key; None otherwise."""
    return text if isinstance(text, str) and text.isprintable() and text and not set(text) & set(" |") else None
