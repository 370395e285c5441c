"""Registers the broker at its name servers: at the start, periodically, and on changes. Unregisters it at the end.

A slave learns from the replies which broker is its master.

Each name server has its own task, so a name server that is down delays no other. Source: RocketMQ 4.9.8,
BrokerOuterAPI.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from concurrent.futures import Future

from pyromq.broker.config import BrokerConfig
from pyromq.broker.role import MASTER, BrokerRole
from pyromq.broker.topics import ChangeCause, Topics
from pyromq.clock import Clock
from pyromq.errors import MQError, ResponseCode
from pyromq.logs import logger_of
from pyromq.net.address_server import REFRESH_SECONDS, AddressServer, is_url
from pyromq.net.channel import Channel, connect
from pyromq.net.tasks import Tasks
from pyromq.remoting.bodies import (
    ANSWER,
    BrokerRegistration,
    ClusterTable,
    DataVersion,
    KeyValues,
    TopicConfig,
    TopicConfigTable,
    TopicRoute,
    body_pieces,
    compress_registration,
    decode_body,
    encode_body,
)
from pyromq.remoting.codes import Permission
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    BrokerClusterInfo,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    RouteOfTopic,
    UnregisterBroker,
)

logger = logger_of(__name__)

CHECK_SECONDS = 1.0  # time between two attempts to reach a lost name server, or to register a change
FIRST_SECONDS = 2.0  # longest wait for name servers at the start; slower ones are registered later
HOSTS_SECONDS = 3.0  # longest wait for a name server's list of brokers
LEAVE_SECONDS = 3.0  # longest wait for a name server's reply when the broker unregisters
LOOK_UP_AGAIN_SECONDS = 10.0  # time until a failed look-up at an address server is tried again
WATCH_SECONDS = 60.0  # time after a promotion in which each name server is asked for the master every second
WATCH_AGAIN_SECONDS = 5.0  # time between two such questions later
NEW_MASTER_TIMEOUT = 1.0  # longest wait for a name server's reply in the time after a promotion
PIECES_AT_ONCE = 500  # pieces of a registration encoded before other connections are served: about 500 us

_READ_WRITE = Permission.READ | Permission.WRITE


class _NameServer:
    """One name server, and the state of this broker's registration there."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel: Channel | None = None
        # Version of the broker's topics at the name server; None if not registered.
        self.version: DataVersion | None = None
        self.registered_at = 0.0  # time of the last registration (monotonic seconds)
        self.watched_at = 0.0  # time at which it was last asked for the master
        # Addresses of the master and of its HA stream in the last reply.
        self.masters: tuple[str | None, str | None] = (None, None)
        self.keeping: asyncio.Task[None] | None = None  # the task that keeps the broker registered
        self.fault: str | None = ""  # why the name server cannot be used; None if it can, "" before the first try

    @property
    def knows_us(self) -> bool:
        return self.version is not None and self.channel is not None and not self.channel.closed


class NameServerRegistration:
    """The registrations of one broker at all its name servers.

    An unreachable name server is tried again each second.
    """

    def __init__(self, config: BrokerConfig, topics: Topics, clock: Clock, role: BrokerRole) -> None:
        self._config = config
        self._topics = topics
        self._clock = clock
        self._role = role
        self._registered_as = self._identity()
        self._promoted_at: float | None = None  # None unless the broker became the master while it ran
        role.listen(self._apply_role)
        self._tasks = Tasks()
        fixed = [address for address in config.namesrv if not is_url(address)]
        self._name_servers = [_NameServer(address) for address in dict.fromkeys(fixed)]
        self._fixed = frozenset(fixed)
        self._address_servers = [AddressServer(address) for address in config.namesrv if is_url(address)]  # at most one
        self._look_up_failed = False
        self._body: tuple[tuple[DataVersion, int], bytes] | None = None

    @property
    def registered(self) -> list[str]:
        """The addresses of the name servers that know this broker now."""
        return [name_server.address for name_server in self._known()]

    @property
    def versions(self) -> dict[str, DataVersion | None]:
        """The version of the broker's topics at each name server.

        None for a name server that does not know the broker.
        """
        return {name_server.address: name_server.version for name_server in self._name_servers}

    async def hosts(self) -> frozenset[str]:
        """Return the IP addresses of all brokers that are registered under this broker's name.

        The first name server that replies decides. Empty if no name server replies.
        """
        for name_server in self._known():
            assert name_server.channel is not None
            try:
                response = await name_server.channel.call(BrokerClusterInfo(), timeout=HOSTS_SECONDS)
                brokers = decode_body(ClusterTable, response.check().body, ANSWER).brokers
            except MQError as error:
                logger.warning("name server %s does not list the brokers: %s", name_server.address, error)
                continue
            known = brokers.get(self._config.name)
            addresses = () if known is None else known.addresses.values()
            return frozenset(address.rpartition(":")[0].strip("[]") for address in addresses)
        return frozenset()

    async def start(self) -> None:
        """Register at all name servers. Return when each one has replied or failed, after 2 s at the latest.

        If there is an address server, the look-up there comes first and takes up to 3 s more.
        """
        first = [self._begin(name_server) for name_server in self._name_servers]
        for address_server in self._address_servers:
            first += await self._look_up(address_server)
            self._tasks.start(
                self._keep_looking_up(address_server), name=f"look up name servers at {address_server.url}"
            )
        if first:
            await asyncio.wait(first, timeout=FIRST_SECONDS)

    def _identity(self) -> tuple[int, int, str]:
        """Return the fields of a registration for this broker's role: id, epoch, and address of the HA stream."""
        role = self._role
        return role.broker_id, role.epoch, (role.ha_address or "") if role.is_master else ""

    def _apply_role(self) -> None:
        """If the broker has another role now, register at once at all name servers."""
        before, self._registered_as = self._registered_as, self._identity()
        if before == self._registered_as:
            return
        if self._role.is_master and before[0] != MASTER:
            self._promoted_at = self._clock.monotonic()
        for name_server in self._name_servers:
            if name_server.keeping is not None:  # otherwise the first registration is still to come
                name_server.keeping.cancel()  # a request of the earlier role may be in progress
                name_server.version = None
                self._begin(name_server)

    async def stop(self) -> None:
        """Unregister at all name servers and close the connections. Takes up to `LEAVE_SECONDS`."""
        await self._tasks.stop()
        for name_server in self._name_servers:
            name_server.keeping = None
        await asyncio.gather(*(self._leave(name_server) for name_server in self._name_servers))

    def announce(self, topic: TopicConfig) -> Future[None]:
        """Register one topic at the known name servers; the future completes when all have replied or failed."""
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
            name_server.channel.call_soon(self._header(body), body, timeout=self._timeout).add_done_callback(answered)
        if not asked:
            told.set_result(None)
        return told

    def route(self, topic: str) -> Future[TopicRoute | None]:
        """Return a future of the topic's brokers and queues, as a name server knows them.

        The future resolves to None if no name server is known, or if the first one does not know the topic or does not
        reply.
        """
        found: Future[TopicRoute | None] = Future()

        def answered(response: asyncio.Future[Response]) -> None:
            try:
                found.set_result(decode_body(TopicRoute, response.result().check().body, ANSWER))
            except (MQError, asyncio.CancelledError):
                found.set_result(None)

        name_server = next(self._known(), None)
        if name_server is None:
            found.set_result(None)
        else:
            assert name_server.channel is not None
            asked = name_server.channel.call_soon(RouteOfTopic(topic=topic), timeout=HOSTS_SECONDS)
            asked.add_done_callback(answered)
        return found

    def announce_one_way(self, topic: TopicConfig, change: ChangeCause) -> None:
        """Register an auto-created topic at the known name servers, without waiting for replies.

        Other changes are ignored.
        """
        if change is ChangeCause.AUTOMATIC:
            body = self._encode([topic])
            for name_server in self._known():
                assert name_server.channel is not None
                name_server.channel.notify(self._header(body), body)

    def announce_all(self) -> None:
        """Register all topics again at all name servers, within a second."""
        for name_server in self._name_servers:
            name_server.registered_at = float("-inf")

    def _known(self) -> Iterator[_NameServer]:
        return (name_server for name_server in self._name_servers if name_server.knows_us)

    def _begin(self, name_server: _NameServer) -> asyncio.Future[None]:
        """Start the task of a name server; return a future that completes after the task's first try."""
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work = self._keep(name_server, tried)
        name_server.keeping = self._tasks.start(work, name=f"register at {name_server.address}")
        return tried

    async def _keep_looking_up(self, address_server: AddressServer) -> None:
        while True:
            await self._clock.sleep(LOOK_UP_AGAIN_SECONDS if self._look_up_failed else REFRESH_SECONDS)
            await self._look_up(address_server)

    async def _look_up(self, address_server: AddressServer) -> list[asyncio.Future[None]]:
        """Look up the name servers: register at new ones, and unregister at removed ones.

        Return futures of the first registrations at new name servers. After a failed look-up nothing changes. Source:
        BrokerController.initialize, fetchNamesrvAddrByAddressServer.
        """
        try:
            wanted = [*self._fixed, *await address_server.look_up()]
        except MQError as error:
            if not self._look_up_failed:
                logger.warning("%s", error)
            self._look_up_failed = True
            return []
        self._look_up_failed = False
        gone = [name_server for name_server in self._name_servers if name_server.address not in wanted]
        known = {name_server.address for name_server in self._name_servers}
        new = [_NameServer(address) for address in dict.fromkeys(wanted) if address not in known]
        self._name_servers = [each for each in self._name_servers if each not in gone] + new
        for name_server in gone:
            logger.info(
                "name server %s is no longer used: %s does not list it", name_server.address, address_server.url
            )
            if name_server.keeping is not None:
                name_server.keeping.cancel()
            await self._leave(name_server)
        return [self._begin(name_server) for name_server in new]

    async def _keep(self, name_server: _NameServer, tried: asyncio.Future[None]) -> None:
        while True:
            await self._maintain(name_server)
            if not tried.done():
                tried.set_result(None)
            await self._clock.sleep(CHECK_SECONDS)

    async def _maintain(self, name_server: _NameServer) -> None:
        """Connect to a name server if necessary, and register if it is due. Each change of its state is logged once."""
        if self._role.fence:
            return  # this registration could take the place of a new master's
        try:
            if name_server.channel is None or name_server.channel.closed:
                name_server.version = None
                name_server.channel = await connect(
                    name_server.address, Dispatcher(), self._clock, connections=self._config.connections
                )
            if self._is_due(name_server) or not await self._is_shown(name_server, name_server.channel):
                await self._register(name_server, name_server.channel)
        except MQError as error:
            name_server.version = None
            if not name_server.fault:
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

    @property
    def _timeout(self) -> float:
        """The longest wait (seconds) for a name server's reply to a registration."""
        if self._is_new_master:
            return NEW_MASTER_TIMEOUT
        return self._config.register_timeout_ms / 1000

    @property
    def _is_new_master(self) -> bool:
        return self._promoted_at is not None and self._clock.monotonic() - self._promoted_at < WATCH_SECONDS

    async def _is_shown(self, name_server: _NameServer, channel: Channel) -> bool:
        """Return False if the broker was promoted, and the name server shows another master or none.

        A late registration of the former master may have replaced this broker's. Asks every second for a minute after
        the promotion, and every 5 s later.
        """
        now, role = self._clock.monotonic(), self._role
        pause = 0.0 if self._is_new_master else WATCH_AGAIN_SECONDS
        if self._promoted_at is None or not role.is_master or now - name_server.watched_at < pause:
            return True
        name_server.watched_at = now
        response = await channel.call(RouteOfTopic(topic=self._config.cluster), timeout=self._timeout)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return False
        route = decode_body(TopicRoute, response.check().body, ANSWER)
        shown = [each.addresses.get(MASTER) for each in route.brokers if each.broker_name == self._config.name]
        if shown == [self._config.advertised_address]:
            return True
        logger.warning("name server %s shows %s as the master, registering again", name_server.address, shown or "none")
        return False

    def _note_master(self, name_server: _NameServer, response: Response) -> None:
        """Note what a name server tells a slave about its master. Replica sets know their master from the registry."""
        if self._role.is_master or self._role.epoch:
            return
        header = response.header(RegisterBrokerResponse)
        name_server.masters = (header.master_address or None, header.ha_address or None)
        for address, ha_address in (each.masters for each in self._name_servers):
            if address is not None:
                self._role.follow(address, self._config.ha_master or ha_address)
                return
        # No name server knows a master, perhaps because they have just started. The last known master is kept.

    async def _register(self, name_server: _NameServer, channel: Channel) -> None:
        version = self._topics.version
        known = name_server.version is not None
        if known and not self._config.force_register and not await self._is_outdated(channel, version):
            name_server.version = version
            name_server.registered_at = self._clock.monotonic()
            return
        body = await self._whole_table()
        response = (await channel.call(self._header(body), body, timeout=self._timeout)).check()
        name_server.version = version
        self._note_master(name_server, response)
        name_server.registered_at = self._clock.monotonic()
        first = next(self._known(), None)  # None: the connection broke right after the reply
        if response.body and first is name_server:  # only the first name server decides which topics are ordered
            self._topics.order(frozenset(decode_body(KeyValues, response.body, ANSWER).table))

    async def _is_outdated(self, channel: Channel, version: DataVersion) -> bool:
        """Return whether the name server has other topics than the broker.

        The request also counts as a sign of life.
        """
        header = QueryDataVersion(
            broker_name=self._config.name,
            broker_address=self._config.advertised_address,
            cluster=self._config.cluster,
            broker_id=self._role.broker_id,
        )
        response = (await channel.call(header, encode_body(version), timeout=self._timeout)).check()
        return response.header(QueryDataVersionResponse).changed

    async def _whole_table(self) -> bytes:
        """Return the encoded registration of all topics.

        The registration is encoded once for each version of the topics, in slices.
        """
        state = self._topics.version, self._config.permission
        if self._body is None or self._body[0] != state:
            registration = self._registration(list(self._topics))
            if self._config.compressed_register:
                body = await asyncio.get_running_loop().run_in_executor(None, compress_registration, registration)
            else:
                body = await _encoded(registration)
            self._body = state, body
            return body
        return self._body[1]

    def _encode(self, topics: list[TopicConfig]) -> bytes:
        registration = self._registration(topics)
        return compress_registration(registration) if self._config.compressed_register else encode_body(registration)

    def _registration(self, topics: list[TopicConfig]) -> BrokerRegistration:
        permission = self._config.permission
        if permission & _READ_WRITE != _READ_WRITE:  # the broker's permission applies to the routes of all its topics
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
        return BrokerRegistration(topics=table)

    def _header(self, body: bytes) -> RegisterBroker:
        config = self._config
        broker_id, epoch, ha_address = self._identity()
        return RegisterBroker(
            broker_name=config.name,
            broker_address=config.advertised_address,
            cluster=config.cluster,
            ha_address=ha_address,  # "" without one: Java's name server refuses a registration without the field
            broker_id=broker_id,
            epoch=epoch or None,
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
            broker_id=self._role.broker_id,
            epoch=self._role.epoch or None,
        )
        try:
            if not self._role.fence:  # RocketMQ's name servers would remove the address of a new master
                (await channel.call(header, timeout=LEAVE_SECONDS)).check()
        except MQError as error:
            logger.warning("not unregistered at name server %s: %s", name_server.address, error)
        await channel.close()


async def _encoded(registration: BrokerRegistration) -> bytes:
    parts = []
    for number, piece in enumerate(body_pieces(registration), 1):
        parts.append(piece)
        if number % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return "".join(parts).encode()
