"""Answers brokers that register, say goodbye, and ask whether what they last announced is still known."""

from __future__ import annotations

import logging
import zlib

from pyromq.clock import Clock
from pyromq.errors import BrokerError
from pyromq.nameserver.kv import ORDER_TOPICS, KvTable
from pyromq.nameserver.routes import MASTER, BrokerIdentity, RouteTable
from pyromq.remoting.bodies import (
    BrokerRegistration,
    DataVersion,
    KeyValues,
    decode_body,
    decompress_registration,
    encode_body,
)
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.exchange import Exchange
from pyromq.remoting.headers import (
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
)

logger = logging.getLogger(__name__)


class RegisteringBrokers:
    """Brokers: announcements, goodbyes, and the connection whose end is a goodbye too."""

    def __init__(self, routes: RouteTable, kv: KvTable, clock: Clock) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock

    @answers(RegisterBroker)
    def register(self, header: RegisterBroker, call: Call) -> Reply:
        if header.body_crc and zlib.crc32(call.body) & 0x7FFFFFFF != header.body_crc:
            raise BrokerError("crc32 not match")
        broker = BrokerIdentity(header.cluster, header.broker_name, header.broker_id, header.broker_address)
        registration = _registration(header, call.body)
        if broker.address not in self._routes.addresses():
            logger.info("broker %s (%s) registers", broker.address, broker.name)
        if self._forget not in call.peer.on_close:
            call.peer.on_close.append(self._forget)
        self._routes.register(
            broker,
            registration,
            now=self._clock.monotonic(),
            ha_address=header.ha_address,
            connection=call.peer,
        )
        master, ha_address = (None, None) if broker.broker_id == MASTER else self._routes.master_of(broker.name)
        order = self._kv.namespace(ORDER_TOPICS)
        body = encode_body(KeyValues(table=order)) if order is not None else b""
        return Reply(RegisterBrokerResponse(ha_address=ha_address, master_address=master), body)

    def _forget(self, connection: Exchange) -> None:
        for address in self._routes.connection_closed(connection):
            logger.info("broker %s is gone: its connection closed", address)

    @answers(UnregisterBroker)
    def unregister(self, header: UnregisterBroker, call: Call) -> Reply:
        self._routes.unregister(
            BrokerIdentity(header.cluster, header.broker_name, header.broker_id, header.broker_address)
        )
        logger.info("broker %s unregisters", header.broker_address)
        return Reply()

    @answers(QueryDataVersion)
    def query_version(self, header: QueryDataVersion, call: Call) -> Reply:
        known = self._routes.version_of(header.broker_address, self._clock.monotonic())
        changed = known is None or known != decode_body(DataVersion, call.body)
        return Reply(QueryDataVersionResponse(changed=changed), encode_body(known) if known is not None else b"")


def _registration(header: RegisterBroker, body: bytes) -> BrokerRegistration:
    if not body:
        return BrokerRegistration()
    return decompress_registration(body) if header.compressed else decode_body(BrokerRegistration, body)
