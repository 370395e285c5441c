"""Keeps the broker known to its name servers: registers, repeats that, tells changes at once, leaves at the end.

Each name server is served for itself, so that one that is down delays nothing. Source: RocketMQ 4.9.8, BrokerOuterAPI.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterator
from concurrent.futures import Future

from pyromq.broker.config import BrokerConfig
from pyromq.broker.topics import Change, Topics
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.net.channel import Channel, connect
from pyromq.net.tasks import Tasks
from pyromq.remoting.bodies import (
    BrokerRegistration,
    DataVersion,
    KeyValues,
    TopicConfig,
    TopicConfigTable,
    compress_registration,
    decode_body,
    encode_body,
)
from pyromq.remoting.codes import Permission
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    UnregisterBroker,
)

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # how soon a lost name server, or one that missed a change, is tried again
FIRST_SECONDS = 2.0  # the most a start waits for name servers; what is not reached by then follows later
LEAVE_SECONDS = 3.0

_READ_WRITE = Permission.READ | Permission.WRITE


class _NameServer:
    """What is known of one name server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel: Channel | None = None
        self.version: DataVersion | None = None  # of our topics, as it has them; None: it does not know us
        self.registered_at = 0.0  # monotonic seconds
        self.fault: str | None = ""  # why it cannot be used; None: it can; "": not tried yet

    @property
    def knows_us(self) -> bool:
        return self.version is not None and self.channel is not None and not self.channel.closed


class NameServerRegistration:
    """The registrations of one broker at all its name servers. An unreachable one is tried again each second."""

    def __init__(self, config: BrokerConfig, topics: Topics, clock: Clock) -> None:
        self._config = config
        self._topics = topics
        self._clock = clock
        self._tasks = Tasks()
        self._name_servers = [_NameServer(address) for address in dict.fromkeys(config.namesrv)]
        self._body: tuple[tuple[DataVersion, int], bytes] | None = None
        topics.on_change = self.announce_one_way

    @property
    def registered(self) -> list[str]:
        """The addresses of the name servers that know this broker now."""
        return [name_server.address for name_server in self._known()]

    @property
    def versions(self) -> dict[str, DataVersion | None]:
        """By name server, the version of our topics that it has."""
        return {name_server.address: name_server.version for name_server in self._name_servers}

    async def start(self) -> None:
        """Register everywhere; returns when each name server has answered or failed, after 2 s at the latest."""
        first = [asyncio.get_running_loop().create_future() for _ in self._name_servers]
        for name_server, tried in zip(self._name_servers, first, strict=True):
            self._tasks.start(self._keep(name_server, tried), name=f"register at {name_server.address}")
        if first:
            await asyncio.wait(first, timeout=FIRST_SECONDS)

    async def stop(self) -> None:
        """Leave all name servers and close the connections to them."""
        await self._tasks.stop()
        await asyncio.gather(*(self._leave(name_server) for name_server in self._name_servers))

    def announce(self, topic: TopicConfig) -> Future[None]:
        """Tell one topic to the name servers that know us; the future ends when all have answered or failed."""
        told: Future[None] = Future()
        asked = list(self._known())
        missing = len(asked)

        def answered(response: asyncio.Future[Response]) -> None:
            nonlocal missing
            missing -= 1
            if not response.cancelled() and (error := response.exception()) is not None:
                logger.warning("topic %s was not announced: %s", topic.name, error)
            if not missing:
                told.set_result(None)

        body = self._encode([topic])
        for name_server in asked:
            assert name_server.channel is not None
            timeout = self._config.register_timeout_ms / 1000
            name_server.channel.call_soon(self._header(body), body, timeout=timeout).add_done_callback(answered)
        if not asked:
            told.set_result(None)
        return told

    def announce_one_way(self, topic: TopicConfig, change: Change) -> None:
        """Tell an automatically created topic, without waiting: the client's answer shall not wait either."""
        if change is Change.AUTOMATIC:
            body = self._encode([topic])
            for name_server in self._known():
                assert name_server.channel is not None
                name_server.channel.notify(self._header(body), body)

    def announce_all(self) -> None:
        """Tell all topics at the next look: within a second."""
        for name_server in self._name_servers:
            name_server.registered_at = float("-inf")

    def _known(self) -> Iterator[_NameServer]:
        return (name_server for name_server in self._name_servers if name_server.knows_us)

    async def _keep(self, name_server: _NameServer, tried: asyncio.Future[None]) -> None:
        while True:
            await self._look_after(name_server)
            if not tried.done():
                tried.set_result(None)
            await self._clock.sleep(LOOK_SECONDS)

    async def _look_after(self, name_server: _NameServer) -> None:
        """Connect if need be; register if it is time or something changed. Each change of state is logged once."""
        try:
            if name_server.channel is None or name_server.channel.closed:
                name_server.version = None
                name_server.channel = await connect(
                    name_server.address, Dispatcher(), self._clock, connections=self._config.connections
                )
            if self._is_due(name_server):
                await self._register(name_server, name_server.channel)
        except MQError as error:
            name_server.version = None
            if name_server.fault is None or not name_server.fault:
                logger.warning("name server %s cannot be used, trying again: %s", name_server.address, error)
            name_server.fault = str(error)
        else:
            if name_server.fault is not None:
                logger.info("registered at name server %s as %s", name_server.address, self._config.advertised_address)
            name_server.fault = None

    def _is_due(self, name_server: _NameServer) -> bool:
        if name_server.version != self._topics.version:
            return True
        return self._clock.monotonic() - name_server.registered_at >= self._config.register_interval_ms / 1000

    async def _register(self, name_server: _NameServer, channel: Channel) -> None:
        version = self._topics.version
        if not self._config.force_register and not await self._is_outdated(channel, version):
            name_server.version = version
            name_server.registered_at = self._clock.monotonic()
            return
        body = self._whole_table()
        timeout = self._config.register_timeout_ms / 1000
        response = (await channel.call(self._header(body), body, timeout=timeout)).check()
        name_server.version = version
        name_server.registered_at = self._clock.monotonic()
        first = next(self._known())
        if response.body and first is name_server:  # one name server decides, lest two that differ take turns
            self._topics.order(frozenset(decode_body(KeyValues, response.body).table))

    async def _is_outdated(self, channel: Channel, version: DataVersion) -> bool:
        """Ask whether the name server has other topics of ours than we have; asking counts as a sign of life."""
        header = QueryDataVersion(
            broker_name=self._config.name,
            broker_address=self._config.advertised_address,
            cluster=self._config.cluster,
            broker_id=self._config.broker_id,
        )
        timeout = self._config.register_timeout_ms / 1000
        response = (await channel.call(header, encode_body(version), timeout=timeout)).check()
        return response.header(QueryDataVersionResponse).changed

    def _whole_table(self) -> bytes:
        """All topics, encoded once for each version of the table."""
        state = self._topics.version, self._config.permission
        if self._body is None or self._body[0] != state:
            self._body = state, self._encode(list(self._topics))
        return self._body[1]

    def _encode(self, topics: list[TopicConfig]) -> bytes:
        permission = self._config.permission
        if permission & _READ_WRITE != _READ_WRITE:  # the broker's own limit shows in the routes of all its topics
            topics = [
                TopicConfig(
                    name=topic.name,
                    read_queues=topic.read_queues,
                    write_queues=topic.write_queues,
                    permission=permission,
                )
                for topic in topics
            ]
        table = TopicConfigTable(data_version=self._topics.version, topics={topic.name: topic for topic in topics})
        registration = BrokerRegistration(topics=table)
        return compress_registration(registration) if self._config.compressed_register else encode_body(registration)

    def _header(self, body: bytes) -> RegisterBroker:
        config = self._config
        return RegisterBroker(
            broker_name=config.name,
            broker_address=config.advertised_address,
            cluster=config.cluster,
            ha_address="",  # nothing listens for replicas; Java's name server refuses a registration without the field
            broker_id=config.broker_id,
            compressed=config.compressed_register,
            body_crc=zlib.crc32(body) & 0x7FFFFFFF,
        )

    async def _leave(self, name_server: _NameServer) -> None:
        channel = name_server.channel
        if channel is None or channel.closed:
            return
        header = UnregisterBroker(
            broker_name=self._config.name,
            broker_address=self._config.advertised_address,
            cluster=self._config.cluster,
            broker_id=self._config.broker_id,
        )
        try:
            (await channel.call(header, timeout=LEAVE_SECONDS)).check()
        except MQError as error:
            logger.warning("not unregistered at name server %s: %s", name_server.address, error)
        await channel.close()
