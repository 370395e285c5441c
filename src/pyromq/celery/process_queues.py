"""Queues that belong to this process: replies, events, remote control. The connections to one cluster share them.

A reply may arrive before the connection that reads it is open: the queue keeps it, as a broker of AMQP would.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pyromq.celery.broadcast_reader import BroadcastReader
from pyromq.celery.queue_names import exchange_topic
from pyromq.celery.rocketmq_connection import RocketConnection
from pyromq.celery.task_payload import is_expired, payload
from pyromq.logs import logger_of
from pyromq.message import StoredMessage

logger = logger_of(__name__)

MAX_KEPT = 10_000  # limit of messages in a queue without a consumer: about 10 MB of usual results


class OwnMessage(NamedTuple):
    raw: dict[str, Any]  # kombu's message
    born_ms: int


Arrived = Callable[[], None]  # a consumer's callback: the queue has one message more


class _Binding(NamedTuple):
    """A binding of a queue to an exchange. `pattern` is the regular expression of a topic exchange's routing key."""

    queue: str
    kind: str
    routing_key: str
    pattern: str | None

    def takes(self, routing_key: str) -> bool:
        if self.kind == "topic" and self.pattern is not None:
            return re.match(self.pattern, routing_key) is not None
        return self.kind == "fanout" or self.routing_key == routing_key


@dataclass(slots=True)
class _Queue:
    is_auto_deleted: bool
    messages: deque[OwnMessage] = field(default_factory=deque)
    consumers: list[Arrived] = field(default_factory=list)
    is_full: bool = False


class ProcessQueues:
    """The queues of this process at one cluster. Methods may be called in any thread."""

    def __init__(self) -> None:
        self.users = 0  # open connections
        self._lock = threading.RLock()
        self._queues: dict[str, _Queue] = {}
        self._bindings: dict[str, set[_Binding]] = {}  # by exchange
        self._readers: dict[str, BroadcastReader] = {}  # by exchange

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    def declare(self, queue: str, *, is_auto_deleted: bool, rocketmq: RocketConnection) -> None:
        """Create a queue, unless it exists. The default exchange delivers messages to it from now on."""
        with self._lock:
            self._queues.setdefault(queue, _Queue(is_auto_deleted))
            self.bind("", "direct", queue, None, queue, rocketmq=rocketmq)

    def bind(
        self, exchange: str, kind: str, routing_key: str, pattern: str | None, queue: str, *, rocketmq: RocketConnection
    ) -> None:
        """Let a queue take the messages of an exchange that are sent from now on."""
        with self._lock:
            if exchange not in self._readers:
                deliver = partial(self._arrived, exchange)
                self._readers[exchange] = rocketmq.broadcast_reader(exchange_topic(exchange), deliver)
            self._bindings.setdefault(exchange, set()).add(_Binding(queue, kind, routing_key, pattern))

    def consume(self, queue: str, arrived: Arrived) -> None:
        """Call `arrived` for each message of a queue, in any thread; the message is fetched with `take`."""
        with self._lock:
            found = self._queues[queue]
            found.consumers.append(arrived)
            for _ in found.messages:
                arrived()

    def cancel(self, queue: str, arrived: Arrived) -> None:
        """End a `consume`. An auto-deleted queue is deleted with its last consumer."""
        with self._lock:
            found = self._queues.get(queue)
            if found is None or arrived not in found.consumers:
                return
            found.consumers.remove(arrived)
            is_over = found.is_auto_deleted and not found.consumers
        if is_over:
            self.delete(queue)

    def take(self, queue: str) -> OwnMessage | None:
        """Return the next message of a queue that has not expired; None if there is none."""
        with self._lock:
            found = self._queues.get(queue)
            while found is not None and found.messages:
                message = found.messages.popleft()
                if not is_expired(message.raw, message.born_ms):
                    return message
        return None

    def restore(self, queue: str, message: OwnMessage) -> None:
        """Make a taken message the first of its queue again. Does nothing if the queue was deleted."""
        with self._lock:
            if (found := self._queues.get(queue)) is not None:
                message.raw["properties"]["delivery_info"]["redelivered"] = True
                found.messages.appendleft(message)
                for arrived in found.consumers:
                    arrived()

    def delete(self, queue: str) -> None:
        """Delete a queue with its messages. Exchanges without queues are read no more."""
        with self._lock:
            self._queues.pop(queue, None)
            unread = []
            for exchange, bindings in list(self._bindings.items()):
                bindings -= {each for each in bindings if each.queue == queue}
                if not bindings:
                    del self._bindings[exchange]
                    unread.append(self._readers.pop(exchange))
        for reader in unread:  # without the lock, which a reader's thread may wait for
            reader.close()

    def close(self) -> None:
        for queue in list(self._queues):
            self.delete(queue)

    def _arrived(self, exchange: str, message: StoredMessage) -> None:
        """Called in a reader's thread: add a message to the queues that take it, a copy to each."""
        if (raw := payload(message)) is None:
            return
        routing_key = str(raw["properties"]["delivery_info"].get("routing_key", ""))
        with self._lock:
            names = {each.queue for each in self._bindings.get(exchange, ()) if each.takes(routing_key)}
            for name in names:
                self._add(name, payload(message) or raw, message.born_ms)

    def _add(self, name: str, raw: dict[str, Any], born_ms: int) -> None:
        queue = self._queues[name]
        if len(queue.messages) >= MAX_KEPT:
            queue.messages.popleft()
            if not queue.is_full:
                logger.warning("queue %s is not consumed: of its messages the last %d are kept", name, MAX_KEPT)
            queue.is_full = True
        queue.messages.append(OwnMessage(raw, born_ms))
        for arrived in queue.consumers:
            arrived()


def take_queues(rocketmq: RocketConnection) -> ProcessQueues:
    """Return the queues of this process at a connection's cluster. `give_back` ends the connection's use of them."""
    with _sharing:
        queues = _shared.setdefault(_key(rocketmq), ProcessQueues())
        queues.users += 1
        return queues


def give_back(rocketmq: RocketConnection, queues: ProcessQueues) -> None:
    """Delete the queues if no connection uses them any more. Does nothing in a forked child."""
    with _sharing:
        queues.users -= 1
        if queues.users or _shared.get(_key(rocketmq)) is not queues:
            return
        del _shared[_key(rocketmq)]
    queues.close()


def _key(rocketmq: RocketConnection) -> Any:
    return os.getpid(), rocketmq.namesrv, rocketmq.namespace, rocketmq.connections


_shared: dict[Any, ProcessQueues] = {}
_sharing = threading.Lock()
