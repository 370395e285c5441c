"""Which brokers there are and which topics they hold: the name server's whole knowledge, a table in memory.

No sockets and no clock: times are passed in, in monotonic seconds, which no change of the wall clock moves.
Source: RocketMQ 4.9.8, RouteInfoManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyromq.remoting.bodies import (
    BrokerAddresses,
    BrokerRegistration,
    ClusterTable,
    DataVersion,
    QueuesAtBroker,
    TopicConfig,
    TopicRoute,
)
from pyromq.remoting.codes import Permission

MASTER = 0


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who registers: one address of one broker name."""

    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(slots=True)
class _LiveBroker:
    """A registered address: when it was heard last (monotonic), which topics it announced, by which connection."""

    identity: BrokerIdentity
    heard: float
    version: DataVersion
    ha_address: str | None
    connection: object


class RouteTable:
    """The table. One address is one live broker; a broker name has a master (id 0) and slaves."""

    def __init__(self) -> None:
        self._live: dict[str, _LiveBroker] = {}
        self._brokers: dict[str, BrokerAddresses] = {}
        self._clusters: dict[str, set[str]] = {}
        self._topics: dict[str, dict[str, QueuesAtBroker]] = {}
        self._filter_servers: dict[str, list[str]] = {}

    # -- brokers come and go

    def register(
        self,
        broker: BrokerIdentity,
        registration: BrokerRegistration,
        *,
        now: float,
        ha_address: str | None = None,
        connection: object = None,
    ) -> None:
        """Take in an announcement. A master's topics replace its old ones when their version or its address is new.

        Topics missing from the announcement stay, as upstream. Topics missing here are entered in any case: a broker
        may have announced one new topic alone, under the version of all, after we had forgotten the others.
        """
        known = self._live.get(broker.address)
        self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        is_new = self._enter_address(broker) or known is None or known.identity != broker
        version = registration.topics.data_version
        if broker.broker_id == MASTER:
            changed = is_new or known is None or known.version != version
            for topic in registration.topics.topics.values():
                if changed or broker.name not in self._topics.get(topic.name, ()):
                    self._enter_topic(broker.name, topic)
        self._live[broker.address] = _LiveBroker(broker, now, version, ha_address, connection)
        if registration.filter_servers:
            self._filter_servers[broker.address] = registration.filter_servers
        else:
            self._filter_servers.pop(broker.address, None)

    def _enter_address(self, broker: BrokerIdentity) -> bool:
        """Return whether the name had another address, or none, under this id: another's topics went with it."""
        known = self._brokers.get(broker.name)
        addresses = dict(known.addresses) if known is not None else {}
        is_new = addresses.get(broker.broker_id) != broker.address
        if known is not None and known.cluster != broker.cluster:
            self._leave_cluster(known)
        # An address that comes back under another id has changed its role.
        addresses = {key: value for key, value in addresses.items() if value != broker.address}
        addresses[broker.broker_id] = broker.address
        self._brokers[broker.name] = BrokerAddresses(
            broker_name=broker.name, cluster=broker.cluster, addresses=dict(sorted(addresses.items()))
        )
        return is_new

    def _enter_topic(self, broker_name: str, topic: TopicConfig) -> None:
        self._topics.setdefault(topic.name, {})[broker_name] = QueuesAtBroker(
            broker_name=broker_name,
            permission=topic.permission,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            sys_flag=topic.sys_flag,
        )

    def unregister(self, broker: BrokerIdentity) -> None:
        """The broker says goodbye."""
        self._remove(broker.address, broker)

    def connection_closed(self, connection: object) -> list[str]:
        """Remove the brokers that registered by this connection; return their addresses."""
        gone = [address for address, live in self._live.items() if live.connection is connection]
        for address in gone:
            self._remove(address)
        return gone

    def expire(self, oldest: float) -> list[str]:
        """Remove the brokers last heard before `oldest`; return their addresses."""
        gone = [address for address, live in self._live.items() if live.heard < oldest]
        for address in gone:
            self._remove(address)
        return gone

    def _remove(self, address: str, broker: BrokerIdentity | None = None) -> None:
        """Forget an address; with a name's last address its topics go, with a cluster's last name the cluster."""
        live = self._live.pop(address, None)
        self._filter_servers.pop(address, None)
        identity = live.identity if live is not None else broker
        if identity is None:
            return
        known = self._brokers.get(identity.name)
        if known is None:
            return
        left = {key: value for key, value in known.addresses.items() if value != address}
        if left:
            self._brokers[identity.name] = BrokerAddresses(
                broker_name=known.broker_name, cluster=known.cluster, addresses=left
            )
            return
        del self._brokers[identity.name]
        self._leave_cluster(known)
        for topic in [topic for topic, queues in self._topics.items() if identity.name in queues]:
            self._forget_topic_at(topic, identity.name)

    def _leave_cluster(self, broker: BrokerAddresses) -> None:
        names = self._clusters[broker.cluster]
        names.discard(broker.broker_name)
        if not names:
            del self._clusters[broker.cluster]

    def _forget_topic_at(self, topic: str, broker_name: str) -> None:
        queues = self._topics[topic]
        queues.pop(broker_name, None)
        if not queues:
            del self._topics[topic]

    def version_of(self, address: str, now: float) -> DataVersion | None:
        """Return the version of what the broker announced last; asking is a sign of life."""
        live = self._live.get(address)
        if live is None:
            return None
        live.heard = now
        return live.version

    def master_of(self, broker_name: str) -> tuple[str | None, str | None]:
        """Return a master's address and its replication address; None where there is no master."""
        known = self._brokers.get(broker_name)
        address = known.addresses.get(MASTER) if known is not None else None
        live = self._live.get(address) if address is not None else None
        return (address, live.ha_address) if live is not None else (None, None)

    # -- what clients ask

    def route(self, topic: str) -> TopicRoute | None:
        """Return the brokers of a topic; None where no live broker holds it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        servers = {
            address: self._filter_servers[address]
            for broker in brokers
            for address in broker.addresses.values()
            if address in self._filter_servers
        }
        return TopicRoute(brokers=brokers, queues=list(queues.values()), filter_servers=servers)

    def cluster_table(self) -> ClusterTable:
        clusters = {cluster: sorted(names) for cluster, names in self._clusters.items()}
        return ClusterTable(brokers=dict(self._brokers), clusters=clusters)

    def topics(self, wanted: Callable[[QueuesAtBroker], bool] | None = None) -> list[str]:
        """Return topic names; with `wanted`, of topics whose first broker's entry fulfils it, as upstream."""
        if wanted is None:
            return list(self._topics)
        return [topic for topic, queues in self._topics.items() if wanted(next(iter(queues.values())))]

    def topics_of(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._topics.items() if names & set(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the clusters' and brokers' own names, which are topics, and the address of some broker."""
        names = [*self._clusters, *self._brokers]
        first = next(iter(self._brokers.values()), None)
        return names, next(iter(first.addresses.values())) if first is not None else None

    # -- what operators change

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget a topic, everywhere or at the brokers of one cluster."""
        if not cluster:
            self._topics.pop(topic, None)
            return
        for name in self._clusters.get(cluster, set()):
            if topic in self._topics:
                self._forget_topic_at(topic, name)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take the write bit from all topics of a broker, until it announces a change; return how many topics."""
        return self._change_permission(broker_name, lambda permission: permission & ~Permission.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let all topics of a broker be read and written; return how many topics."""
        return self._change_permission(broker_name, lambda _: Permission.READ | Permission.WRITE)

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            entry = queues.get(broker_name)
            if entry is not None:
                queues[broker_name] = QueuesAtBroker(
                    broker_name=broker_name,
                    permission=int(change(entry.permission)),
                    read_queues=entry.read_queues,
                    write_queues=entry.write_queues,
                    sys_flag=entry.sys_flag,
                )
                count += 1
        return count

    def addresses(self) -> Iterable[str]:
        """The live brokers' addresses."""
        return list(self._live)
