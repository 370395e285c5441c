"""The transport of kombu on RocketMQ, for `broker_url="rocketmq://HOST:PORT"`.

A durable queue is a topic, and another topic for each priority. All workers pop it as one group, and a task is
invisible while a worker runs it. A queue that is exclusive, auto-deleted or expires belongs to one process, which reads
the topic of the queue's exchange. A binding is valid in the connection that declares it, as in all virtual transports.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from kombu.transport import virtual

import pyromq
from pyromq.celery.inbox import Inbox
from pyromq.celery.process_queues import ProcessQueues, give_back, take_queues
from pyromq.celery.rocketmq_channel import RocketChannel
from pyromq.celery.rocketmq_connection import DEFAULT_PORT, RocketConnection
from pyromq.errors import BrokerError, NotRunning, Unavailable


class Transport(virtual.Transport):
    """One connection of kombu. With an event loop, messages are delivered when the inbox is readable."""

    Channel = RocketChannel
    default_port = DEFAULT_PORT
    driver_type = "rocketmq"
    driver_name = "pyromq"
    connection_errors = (*virtual.Transport.connection_errors, Unavailable, NotRunning)
    channel_errors = (*virtual.Transport.channel_errors, BrokerError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.inbox = Inbox()
        self.rocketmq = RocketConnection(client)
        self.process_queues = ProcessQueues()
        self.known_queues: dict[str, tuple[int, ...]] = {}  # declared durable queues with their priorities

    def driver_version(self) -> str:
        return pyromq.__version__

    def establish_connection(self) -> Any:
        self.rocketmq.open()
        self.process_queues = take_queues(self.rocketmq)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        give_back(self.rocketmq, self.process_queues)
        self.rocketmq.close()
        self.inbox.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Run the callback of one message. Raises `TimeoutError` if none arrives within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        delivered = False
        while not delivered:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if (delivery := self.inbox.take(left)) is None:
                raise TimeoutError(f"no message within {timeout} s")
            delivered = delivery()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        loop.add_reader(self.inbox.fileno(), self._on_readable)

    def on_unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        loop.remove(self.inbox.fileno())

    def _on_readable(self) -> None:
        left = deque(self.inbox.take_all())
        try:
            while left:
                left.popleft()()
        finally:  # if a callback has raised: the event loop calls this again for the others
            for delivery in left:
                self.inbox.put(delivery)
