"""The RocketMQ clients of one kombu connection: producer, administration, and the settings that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyromq.celery.broadcast_reader import BroadcastReader
from pyromq.celery.queue_names import queue_topic
from pyromq.client.blocking.admin import Admin
from pyromq.client.blocking.producers import Producer
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig, ProducerConfig
from pyromq.client.consumer.pop.async_simple_consumer import AsyncSimpleConsumer
from pyromq.errors import AlreadyExists, IllegalName, TopicNotFound, UsageError
from pyromq.message import Message
from pyromq.names import MAX_TOPIC_LENGTH, pop_retry_topic
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.tls_config import TlsConfig

DEFAULT_PORT = 9876
SECURE = "rocketmqs"  # the URL's scheme for TLS without `broker_use_ssl`
OPTIONS = {"group", "max_delay", "namesrv", "priority_steps", "timeout", "topic_queues", "visibility_timeout"}
KOMBU_OPTIONS = {  # kombu reads them itself
    *("callback", "connect_retries_timeout", "errback", "interval_max", "interval_start", "interval_step"),
    *("max_retries", "retry_errors"),
}
SSL_OPTIONS = {
    **{"ca_certs": "authority", "certfile": "certificate", "keyfile": "key", "password": "password"},
    **{"server_name": "server_name", "check_hostname": "check_host", "cert_reqs": "verify"},
}
GROUP = "celery"
VISIBILITY_SECONDS = 30.0
MAX_DELAY_SECONDS = 30 * 86400.0  # the default limit of pyromq's brokers, timerMaxDelaySec
PRIORITY_STEPS = (0, 3, 6, 9)
TOPIC_QUEUES = 1  # messages of one queue are in order of their sending; pop needs no more queues for more workers


class RocketConnection:
    """Clients that are opened when they are first needed. `client` is kombu's connection with its URL and options.

    Options of `broker_transport_options`: `group` pops all queues; a task without acknowledgement is redelivered after
    `visibility_timeout` seconds; `max_delay` limits one delay in the broker; `priority_steps` are the priorities with a
    topic of their own; `topic_queues` is the number of a new topic's queues at each broker; `namesrv` has several name
    servers instead of the URL's one; `timeout` limits each request. Raises `UsageError` for values out of range.
    """

    def __init__(self, client: Any) -> None:
        options: Mapping[str, Any] = client.transport_options
        if unknown := options.keys() - OPTIONS - KOMBU_OPTIONS:
            raise UsageError(
                f"broker_transport_options has {', '.join(sorted(unknown))}; it may have {', '.join(sorted(OPTIONS))}"
            )
        host = client.hostname or "127.0.0.1"
        address = f"[{host}]" if ":" in host else host
        self.namesrv = options.get("namesrv") or f"{address}:{client.port or DEFAULT_PORT}"
        self.group = str(options.get("group", GROUP))
        self.visibility_timeout = _number(options, "visibility_timeout", VISIBILITY_SECONDS, least=1, most=12 * 3600)
        self.max_delay = _number(options, "max_delay", MAX_DELAY_SECONDS, least=0, most=1e9)
        self.priority_steps = _steps(options.get("priority_steps", PRIORITY_STEPS))
        self.topic_queues = int(_number(options, "topic_queues", TOPIC_QUEUES, least=1, most=10_000))
        self.timeout = _number(options, "timeout", 5.0, least=0.001, most=3600)
        self.namespace = (client.virtual_host or "").strip("/") or None
        self.connections = _connections(client)
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._topics: set[str] = set()  # topics that exist

    def open(self) -> None:
        """Connect the producer. Raises `NoNameServer` if no name server can be reached."""
        if self._producer is None:
            config = ProducerConfig(timeout=self.timeout, connections=self.connections, namespace=self.namespace)
            producer = Producer(self.group, self.namesrv, config=config)
            producer.start()
            self._producer = producer

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            admin = Admin(self.namesrv, connections=self.connections)
            admin.start()
            self._admin = admin
        return self._admin

    def send(self, message: Message) -> None:
        """Store a message. Returns when the broker has confirmed it; creates a missing topic."""
        self.create_topic(message.topic)
        self.open()
        assert self._producer is not None, "open() has made it"
        self._producer.send(message)

    def queue_topic(self, queue: str, priority: int) -> str:
        """Return the topic of a queue's messages of one priority. Raises `IllegalName` if the group cannot pop it."""
        topic = queue_topic(queue, priority)
        room = MAX_TOPIC_LENGTH - len(pop_retry_topic(self.full_name(self.group), self.full_name("")))
        if len(topic) > room:
            raise IllegalName(
                f"queue {queue!r} would be topic {topic!r}: a topic of group {self.full_name(self.group)} has at most"
                f" {room} characters; choose a shorter name"
            )
        return topic

    def create_topic(self, topic: str, queues: int | None = None) -> None:
        """Create a topic at every broker, unless it exists."""
        if topic in self._topics:
            return
        if not self.has_topic(topic):
            try:
                self.admin.create_topic(self.full_name(topic), self.topic_queues if queues is None else queues)
            except AlreadyExists:  # another process was faster
                pass
        self._topics.add(topic)

    def has_topic(self, topic: str) -> bool:
        try:
            self.admin.topic_route(self.full_name(topic))
        except TopicNotFound:
            return False
        return True

    def delete_topic(self, topic: str) -> None:
        self._topics.discard(topic)
        if self.has_topic(topic):
            self.admin.delete_topic(self.full_name(topic))

    def waiting(self, topic: str) -> int:
        """Return the number of a topic's messages that the group has not finished."""
        if not self.has_topic(topic):
            return 0
        name = self.full_name(topic)
        progress = self.admin.group_progress(self.full_name(self.group), name)
        consumed = {each.queue: each.consumer_offset for each in progress}
        return sum(
            status.max_offset - max(status.min_offset, consumed.get(status.queue, 0))
            for status in self.admin.topic_status(name)
        )

    def simple_consumer(self) -> AsyncSimpleConsumer:
        """Return a new consumer of the group, which the caller starts."""
        return AsyncSimpleConsumer(self.group, self.namesrv, config=self._consumer_config())

    def broadcast_reader(self, topic: str, deliver: Any) -> BroadcastReader:
        """Return a reader of all messages that are sent to a topic from now on."""
        self.create_topic(topic, queues=1)
        return BroadcastReader(topic, self.namesrv, self._consumer_config(), deliver)

    def full_name(self, name: str) -> str:
        """Return the brokers' name of a topic or group, with the namespace: administration knows no namespaces."""
        return f"{self.namespace}%{name}" if self.namespace else name

    def _consumer_config(self) -> ConsumerConfig:
        return ConsumerConfig(
            timeout=self.timeout,
            consume_from=ConsumeFrom.FIRST,
            auto_commit=False,
            long_poll_seconds=2.0,
            connections=self.connections,
            namespace=self.namespace,
        )


def _connections(client: Any) -> ConnectionConfig | None:
    """Return TLS and account of a URL; None for those of the environment."""
    ssl = client.ssl or client.transport_cls == SECURE
    if not ssl and not client.userid:
        return None
    tls = None
    if ssl:
        given = dict(ssl) if isinstance(ssl, Mapping) else {}
        if unknown := given.keys() - SSL_OPTIONS.keys():
            raise UsageError(f"broker_use_ssl has {', '.join(sorted(unknown))}; it may have {', '.join(SSL_OPTIONS)}")
        if "cert_reqs" in given:
            given["cert_reqs"] = bool(given["cert_reqs"])  # ssl.CERT_NONE is 0
        tls = TlsConfig(**{SSL_OPTIONS[name]: value for name, value in given.items()})
    return ConnectionConfig(tls=tls, access_key=client.userid or None, secret_key=client.password or None)


def _number(options: Mapping[str, Any], name: str, default: float, *, least: float, most: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"broker_transport_options: {name}={value!r} is not a number")
    if not least <= value <= most:
        raise UsageError(f"broker_transport_options: {name}={value!r} is out of range: {least:g} to {most:g}")
    return value


def _steps(steps: Any) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(step) for step in steps}))
    except (TypeError, ValueError):
        found = ()
    if not found or found[0] != 0 or found[-1] > 9:
        raise UsageError(
            f"broker_transport_options: priority_steps={steps!r} must have 0, and may have numbers up to 9, for example"
            " (0, 3, 6, 9)"
        )
    return found
