"""Answers brokers that register, say goodbye, and ask whether what they last announced is still known."""

from __future__ import annotations

import zlib
from concurrent.futures import Future

from pyromq.clock import Clock
from pyromq.errors import BrokerError
from pyromq.logs import logger_of
from pyromq.nameserver.kv import ORDER_TOPICS, KvTable
from pyromq.nameserver.routes import MASTER, BrokerIdentity, RouteTable
from pyromq.net.tasks import Alarm
from pyromq.remoting.bodies import (
    REQUEST,
    BrokerRegistration,
    DataVersion,
    KeyValues,
    decode_body,
    encode_body,
    read_compressed,
    read_plain,
)
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Peer, answers
from pyromq.remoting.headers import (
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
)
from pyromq.slow_work import completed

logger = logger_of(__name__)


class RegisteringBrokers:
    """Brokers: announcements, goodbyes, and the connection whose end is a goodbye too."""

    def __init__(self, routes: RouteTable, kv: KvTable, clock: Clock) -> None:
        self.alarm = Alarm(clock)  # rings when `forget_some` has something to do
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._registering: Future[bool] | None = None  # done when the next registration may begin

    @answers(RegisterBroker)
    async def register(self, header: RegisterBroker, call: Call) -> Reply:
        """Take in registrations one at a time: a broker's older one must not replace its newer one."""
        if header.body_crc and zlib.crc32(call.body) & 0x7FFFFFFF != header.body_crc:
            raise BrokerError("crc32 not match")
        while self._registering is not None:
            await completed(self._registering)
        self._registering = Future()
        try:
            return await self._registered(header, call)
        finally:
            done, self._registering = self._registering, None
            done.set_result(True)

    async def _registered(self, header: RegisterBroker, call: Call) -> Reply:
        broker = BrokerIdentity(header.cluster, header.broker_name, header.broker_id, header.broker_address)
        registration = BrokerRegistration()
        if call.body:
            registration = await (read_compressed if header.compressed else read_plain)(call.body)
            call.body = b""  # megabytes, and entering the topics takes its time
        if broker.address not in self._routes.addresses():
            logger.info("broker %s (%s) registers", broker.address, broker.name)
        if call.peer.closed:
            return Reply()
        if self._forget not in call.peer.on_close:
            call.peer.on_close += (self._forget,)
        await self._routes.registering(
            broker,
            registration,
            now=self._clock.monotonic(),
            ha_address=header.ha_address,
            connection=call.peer,
        )
        if call.peer.closed:
            self._forget(call.peer)
        master, ha_address = (None, None) if broker.broker_id == MASTER else self._routes.master_of(broker.name)
        order = self._kv.namespace(ORDER_TOPICS)
        body = encode_body(KeyValues(table=order)) if order is not None else b""
        return Reply(RegisterBrokerResponse(ha_address=ha_address, master_address=master), body)

    def _forget(self, connection: Peer) -> None:
        for address in self._routes.connection_closed(connection):
            logger.info("broker %s is gone: its connection closed", address)
        self.alarm.ring_within(0)

    def forget_some(self) -> float | None:
        """Go on with what brokers that are gone leave behind; return in how many seconds there is more."""
        if self._routes.is_leaving:
            self._routes.forget_some()
        return 0 if self._routes.is_leaving else None

    @answers(UnregisterBroker)
    def unregister(self, header: UnregisterBroker, call: Call) -> Reply:
        self._routes.unregister(
            BrokerIdentity(header.cluster, header.broker_name, header.broker_id, header.broker_address)
        )
        logger.info("broker %s unregisters", header.broker_address)
        self.alarm.ring_within(0)
        return Reply()

    @answers(QueryDataVersion)
    def query_version(self, header: QueryDataVersion, call: Call) -> Reply:
        known = self._routes.version_of(header.broker_address, self._clock.monotonic())
        changed = known is None or known != decode_body(DataVersion, call.body, REQUEST)
        return Reply(QueryDataVersionResponse(changed=changed), encode_body(known) if known is not None else b"")
