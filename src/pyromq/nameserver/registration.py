"""Answers brokers that register and clients that ask where a topic is."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping

import msgspec

from pyromq.clock import Clock
from pyromq.errors import BrokerError, NoPermission, QueryNotFound, TopicNotFound, UsageError
from pyromq.nameserver.config import BLACK_LIST, JAVA_NAMES, LIVE, NameServerConfig
from pyromq.nameserver.kv import ORDER_TOPICS, KvTable
from pyromq.nameserver.routes import MASTER, BrokerIdentity, RouteTable
from pyromq.remoting.bodies import (
    BrokerRegistration,
    DataVersion,
    KeyValues,
    TopicList,
    decode_body,
    decompress_registration,
    encode_body,
)
from pyromq.remoting.codes import UNIT, UNIT_SUBSCRIPTION
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.exchange import Exchange
from pyromq.remoting.headers import (
    AddWritePermission,
    AddWritePermissionResponse,
    Cluster,
    DeleteKv,
    DeleteTopicName,
    KvNamespace,
    KvValue,
    KvValueResponse,
    NamesrvSettings,
    PutKv,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    RouteOfTopic,
    SaveNamesrvSettings,
    SystemTopicNames,
    TopicNames,
    TopicNamesOfCluster,
    UnitSubscriptionOnlyTopicNames,
    UnitSubscriptionTopicNames,
    UnitTopicNames,
    UnregisterBroker,
    WipeWritePermission,
    WipeWritePermissionResponse,
)
from pyromq.remoting.properties import parse_properties, write_properties
from pyromq.store.json_file import JsonFile

logger = logging.getLogger(__name__)


class Registering:
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


class Routing:
    """Clients and operators: routes, clusters, topic names, permissions."""

    def __init__(self, routes: RouteTable, kv: KvTable, config: NameServerConfig) -> None:
        self._routes = routes
        self._kv = kv
        self._config = config

    @answers(RouteOfTopic)
    def route(self, header: RouteOfTopic, call: Call) -> Reply:
        route = self._routes.route(header.topic)
        if route is None:
            raise TopicNotFound(
                f"No topic route info in name server for the topic: {header.topic}\n"
                "See http://rocketmq.apache.org/docs/faq/ for further details."
            )
        if self._config.order_message_enabled:
            route = msgspec.structs.replace(route, order_conf=self._kv.find(ORDER_TOPICS, header.topic))
        return Reply(body=encode_body(route))

    @answers(Cluster)
    def cluster(self, header: Cluster, call: Call) -> Reply:
        return Reply(body=encode_body(self._routes.cluster_table()))

    @answers(TopicNames)
    def topics(self, header: TopicNames, call: Call) -> Reply:
        return _topic_list(self._routes.topics())

    @answers(TopicNamesOfCluster)
    def topics_of_cluster(self, header: TopicNamesOfCluster, call: Call) -> Reply:
        return _topic_list(self._routes.topics_of(header.cluster))

    @answers(SystemTopicNames)
    def system_topics(self, header: SystemTopicNames, call: Call) -> Reply:
        names, address = self._routes.system_topics()
        return Reply(body=encode_body(TopicList(topics=names, broker_address=address)))

    @answers(UnitTopicNames)
    def unit_topics(self, header: UnitTopicNames, call: Call) -> Reply:
        return _topic_list(self._routes.topics(lambda queues: bool(queues.sys_flag & UNIT)))

    @answers(UnitSubscriptionTopicNames)
    def unit_subscription_topics(self, header: UnitSubscriptionTopicNames, call: Call) -> Reply:
        return _topic_list(self._routes.topics(lambda queues: bool(queues.sys_flag & UNIT_SUBSCRIPTION)))

    @answers(UnitSubscriptionOnlyTopicNames)
    def unit_subscription_only_topics(self, header: UnitSubscriptionOnlyTopicNames, call: Call) -> Reply:
        both = UNIT | UNIT_SUBSCRIPTION
        return _topic_list(self._routes.topics(lambda queues: queues.sys_flag & both == UNIT_SUBSCRIPTION))

    @answers(DeleteTopicName)
    def delete_topic(self, header: DeleteTopicName, call: Call) -> Reply:
        self._routes.delete_topic(header.topic, header.cluster)
        return Reply()

    @answers(WipeWritePermission)
    def wipe(self, header: WipeWritePermission, call: Call) -> Reply:
        return Reply(WipeWritePermissionResponse(count=self._routes.wipe_write_permission(header.broker_name)))

    @answers(AddWritePermission)
    def add(self, header: AddWritePermission, call: Call) -> Reply:
        return Reply(AddWritePermissionResponse(count=self._routes.add_write_permission(header.broker_name)))


def _topic_list(names: list[str]) -> Reply:
    return Reply(body=encode_body(TopicList(topics=names)))


class Configuring:
    """Key-value settings and the name server's own, which `file` keeps over a restart; None: nothing does."""

    def __init__(self, kv: KvTable, config: NameServerConfig, file: JsonFile | None) -> None:
        self._kv = kv
        self._config = config
        self._file = file

    def load(self) -> None:
        """Apply what was changed by request: that outranks what the server is started with. Raises `StoreError`."""
        content = self._file.load() if self._file is not None else None
        if content is not None:
            self._apply(parse_properties(content.decode()))

    @answers(PutKv)
    def put(self, header: PutKv, call: Call) -> Reply:
        if not header.namespace or not header.key:
            raise BrokerError("namespace or key is null")
        self._kv.put(header.namespace, header.key, header.value)
        return Reply()

    @answers(KvValue)
    def value(self, header: KvValue, call: Call) -> Reply:
        value = self._kv.find(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return Reply(KvValueResponse(value=value))

    @answers(DeleteKv)
    def delete(self, header: DeleteKv, call: Call) -> Reply:
        self._kv.delete(header.namespace, header.key)
        return Reply()

    @answers(KvNamespace)
    def namespace(self, header: KvNamespace, call: Call) -> Reply:
        entries = self._kv.namespace(header.namespace)
        if entries is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace}")
        return Reply(body=encode_body(KeyValues(table=entries)))

    @answers(SaveNamesrvSettings)
    def save_settings(self, header: SaveNamesrvSettings, call: Call) -> Reply:
        """Change what may change while the server runs; settings without meaning here are ignored, as upstream."""
        try:
            settings = parse_properties(call.body.decode())
        except UnicodeDecodeError as error:
            raise BrokerError(f"string2Properties error: the settings are not UTF-8: {error}") from error
        if BLACK_LIST & settings.keys():
            raise NoPermission("Can not update config in black list.")
        if fixed := (JAVA_NAMES.keys() - LIVE) & settings.keys():
            raise UsageError(f"{', '.join(sorted(fixed))}: cannot change while the name server runs; restart it")
        changed = {name: settings[name] for name in LIVE & settings.keys()}
        if changed and self._file is not None:
            self._file.save(write_properties(changed).encode())
        self._apply(changed)
        return Reply()

    def _apply(self, settings: Mapping[str, str]) -> None:
        if "orderMessageEnable" in settings:
            self._config.order_message_enabled = settings["orderMessageEnable"].lower() == "true"

    @answers(NamesrvSettings)
    def settings(self, header: NamesrvSettings, call: Call) -> Reply:
        values = {name: getattr(self._config, field) for name, field in JAVA_NAMES.items()}
        texts = {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in values.items() if v is not None}
        return Reply(body=write_properties(texts).encode())
