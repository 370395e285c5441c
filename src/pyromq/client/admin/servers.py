"""Requests to single brokers and name servers: settings, statistics, cleaning, round trips, key-value settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyromq.client.admin.admin_client import ClusterBrokers
from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.clock import Clock
from pyromq.errors import BrokerError, MQError, QueryNotFound, Unavailable, UsageError
from pyromq.message import Message, MessageQueue, encode_properties
from pyromq.message_id import UniqueIds
from pyromq.names import AUTO_CREATE_TOPIC, check_topic
from pyromq.remoting import headers
from pyromq.remoting.bodies import BrokerStats, ConsumeStatsList, KeyValues, decode_body
from pyromq.remoting.properties import parse_properties, write_properties

STATISTICS_SECONDS = 30.0  # limit of the request for all groups' progress, slow at Java brokers
PROBE_GROUP = "SELF_TEST_P_GROUP"  # producer group of probe messages. Source: MixAll.SELF_TEST_PRODUCER_GROUP


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One probe message: the milliseconds until its reply or failure, and the `failure` (None: it was stored)."""

    queue: MessageQueue
    milliseconds: float
    failure: MQError | None = None


@checked
class Servers:
    """The object `admin.servers`: sends requests to one broker at `host:port`, or to all name servers."""

    def __init__(self, cluster: ClusterClient, brokers: ClusterBrokers, *, clock: Clock) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._clock = clock

    async def change_settings(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the broker at `address`, by their names in RocketMQ's configuration files: all or none.

        Raises `BrokerError` with the reason for an illegal name or value.
        """
        await self._brokers.ask(address, headers.SaveBrokerSettings(), _properties(settings))

    async def settings_at_next_start(self, address: str) -> dict[str, str] | None:
        """Return the changed settings that the broker will apply at its next start, by name.

        Return None for a Java broker, which does not send them.
        """
        answer = await self._brokers.ask(address, headers.BrokerSettings())
        text = answer.header(headers.BrokerSettingsResponse).next_start
        return None if text is None else decode_body(dict[str, str], text.encode())

    async def name_server_settings(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by the name server's address."""
        answers = await self._brokers.ask_name_servers(headers.NamesrvSettings())
        texts = [parse_properties(each.body.decode()) for each in answers]
        return dict(zip(self._cluster.name_servers.addresses, texts, strict=True))

    async def change_name_server_settings(self, settings: Mapping[str, str]) -> None:
        """Change settings of all name servers, by their names in RocketMQ's configuration files."""
        await self._brokers.ask_name_servers(headers.SaveNamesrvSettings(), _properties(settings))

    async def clean_topics(self, address: str) -> None:
        """Let the broker at `address` remove the queues of topics that no longer exist."""
        await self._brokers.ask(address, headers.CleanTopics())

    async def clean_queues(self, address: str) -> None:
        """Let the broker at `address` remove queues whose messages have all been deleted."""
        await self._brokers.ask(address, headers.CleanQueues())

    async def statistic(self, address: str, name: str, key: str) -> BrokerStats | None:
        """Return a broker's counter over the last minute, hour and day, for example `TOPIC_PUT_NUMS` of a topic.

        Return None if nothing was counted, or the counter's name is unknown.
        """
        try:
            question = headers.BrokerStatistics(stats_name=name, stats_key=key)
            return await self._brokers.read(address, question, BrokerStats)
        except BrokerError:
            return None  # brokers have no separate response code for an unknown counter

    async def progress(self, address: str, *, ordered_only: bool = False) -> ConsumeStatsList:
        """Return the progress of every group of a broker by queue.

        With `ordered_only`, only the queues of ordered topics are included.
        """
        question = headers.BrokerConsumeStatistics(order=ordered_only)
        response = await self._cluster.ask(address, question, timeout=STATISTICS_SECONDS)
        return decode_body(ConsumeStatsList, response.check().body)

    async def round_trips(self, topic: str, *, count: int = 100, size: int = 128) -> list[RoundTrip]:
        """Send `count` messages of `size` bytes to a topic's queues in turn. Return the round-trip time of each.

        Each broker has a topic of its own name: `cluster rt` uses it to measure that broker, as mqadmin does.
        """
        check_topic(topic)
        if count < 1 or size < 1:
            raise UsageError(f"count {count} and size {size} must be at least 1")
        route = await self._cluster.route(topic)
        if not route.writable:
            raise Unavailable(f"no queue of topic {topic!r} can be written to")
        turns = [route.writable[number % len(route.writable)] for number in range(count)]
        return [await self._round_trip(queue, route.master(queue.broker_name), b"a" * size) for queue in turns]

    async def _round_trip(self, queue: MessageQueue, address: str | None, body: bytes) -> RoundTrip:
        """Send one message. There are no retries, because they would distort the time."""
        header, began = self._sending(queue), time.perf_counter()
        failure: MQError | None = None
        try:
            if address is None:
                raise Unavailable(f"broker {queue.broker_name!r} has no master")
            (await self._cluster.ask(address, header, body)).check()
        except MQError as error:
            failure = error
        return RoundTrip(queue, 1000 * (time.perf_counter() - began), failure)

    def _sending(self, queue: MessageQueue) -> headers.SendMessage:
        message = Message(queue.topic, b"", message_id=UniqueIds(self._cluster.ip, self._clock).next())
        return headers.SendMessage(
            producer_group=PROBE_GROUP,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=4,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_ms=self._clock.now_ms(),
            flag=0,
            properties=encode_properties(message.all_properties()),
        )


def _properties(settings: Mapping[str, str]) -> bytes:
    if not settings:
        raise UsageError("no setting is given; give at least one name and value")
    return write_properties(settings).encode()


class ClusterKv:
    """Values by namespace and key at the name servers, for `AsyncAdmin`. Changes go to every name server."""

    def __init__(self, brokers: ClusterBrokers) -> None:
        self._brokers = brokers

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value by namespace and key at every name server."""
        await self._brokers.ask_name_servers(headers.PutKv(namespace=namespace, key=key, value=value))

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a value by namespace and key; None if none is stored."""
        try:
            response = await self._brokers.ask_name_server(headers.KvValue(namespace=namespace, key=key))
        except QueryNotFound:
            return None
        return response.header(headers.KvValueResponse).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete the value of a namespace and key at every name server."""
        await self._brokers.ask_name_servers(headers.DeleteKv(namespace=namespace, key=key))

    async def kv_namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace by key; {} if there are none."""
        try:
            return (await self._brokers.name_server(headers.KvNamespace(namespace=namespace), KeyValues)).table
        except QueryNotFound:
            return {}
