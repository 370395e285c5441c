"""The registered brokers and their topics: the name server's state, a table in memory.

No sockets and no clock here: callers pass times in monotonic seconds. Source: RocketMQ 4.9.8, RouteInfoManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from pyromq.errors import BrokerError, LimitReached
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of
from pyromq.quota import fair_share
from pyromq.remoting.bodies import (
    MAX_QUEUES,
    BrokerAddresses,
    BrokerRegistration,
    ClusterTable,
    DataVersion,
    QueuesAtBroker,
    TopicConfig,
    TopicRoute,
)
from pyromq.remoting.codes import Permission
from pyromq.slow_work import run_blocking, yield_slice

logger = logger_of(__name__)

MASTER = 0
MAX_TOPICS = 200_000  # limit of topics, each counted at each broker; about 400 bytes each
MAX_BROKERS = 1_000
MAX_FILTER_SERVERS = 16
MAX_NAME = 255  # limit of characters in the name of a topic, broker or cluster, and in an address
_ALL_PERMISSIONS = Permission.INHERIT | Permission.WRITE | Permission.READ | Permission.PRIORITY
KEEP_SECONDS = 86_400.0  # time for which topics of a broker that left are kept: a daily job must notice its absence
MAX_ABSENT_TOPICS = 100_000  # limit of topics kept of brokers that left, each counted at each broker: about 10 MB
MAX_ABSENT_BROKERS = 100
AT_ONCE = 200  # topics handled in one step, which takes about 200 us


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """A broker process as registered: cluster, name, id (0: master), address, and epoch (None outside replica sets)."""

    cluster: str
    name: str
    broker_id: int
    address: str
    epoch: int | None = None


@dataclass(slots=True)
class _LiveBroker:
    """A registered broker address.

    `heard` is the time of its latest heartbeat (monotonic seconds), `version` that of its topics.
    """

    identity: BrokerIdentity
    heard: float
    version: DataVersion
    ha_address: str | None
    connection: object


class RouteTable:
    """The table of registered brokers and topics.

    One address is one live broker; a broker name has a master (id 0) and slaves. The epoch of a replica set's master
    never falls while a broker of the name is registered.

    `max_topics` (each topic counted at each broker) and `max_brokers` limit the table. One connection may use half of
    the free part. Long work is done in steps: `registering`, and `remove_some` while `is_leaving`.
    """

    def __init__(self, *, max_topics: int = MAX_TOPICS, max_brokers: int = MAX_BROKERS) -> None:
        self._max_topics = max_topics
        self._max_brokers = max_brokers
        self._count = 0  # number of topics, each counted at each broker
        self._held: dict[str, dict[str, None]] = {}  # the topics of each broker name
        self._leaving: dict[
            str, list[str]
        ] = {}  # for each broker name that left, the topics that still have this broker
        self._live: dict[str, _LiveBroker] = {}
        self._brokers: dict[str, BrokerAddresses] = {}
        self._clusters: dict[str, set[str]] = {}
        # By topic and broker name. Most topics of a broker share one inner table, so inner tables are never changed.
        self._topics: dict[str, dict[str, QueuesAtBroker]] = {}
        self._filter_servers: dict[str, list[str]] = {}
        self._absent = AbsentTopics()

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._topics)

    # -- brokers register and leave

    def register(
        self,
        broker: BrokerIdentity,
        registration: BrokerRegistration,
        *,
        now: float,
        ha_address: str | None = None,
        connection: object = None,
    ) -> None:
        """Enter a registration in one step, which blocks until all topics are entered."""
        run_blocking(self.registering(broker, registration, now=now, ha_address=ha_address, connection=connection))

    async def registering(
        self,
        broker: BrokerIdentity,
        registration: BrokerRegistration,
        *,
        now: float,
        ha_address: str | None = None,
        connection: object = None,
    ) -> None:
        """Enter a registration.

        The topics of a master replace its old topics if their version or the master's address is new. Topics missing
        from the registration stay, as in RocketMQ. Topics missing in the table are always entered. After the table has
        lost topics, a broker may register one new topic alone, under the version of all topics. A topic with an absurd
        value is left out: each queue costs every client an object. Java clients cannot read a route with a number of
        more than 32 bits. A broker that is removed meanwhile is entered again. Raises `LimitReached`, or `BrokerError`
        for a former master of a replica set, before any change.
        """
        self._check_epoch(broker)
        self._check_room(broker, registration, connection)
        while broker.name in self._leaving:
            self.remove_some(broker.name)
            await yield_slice()
        self._warn_of_another(broker, connection)
        known = self._live.get(broker.address)
        self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        is_new = self._enter_address(broker) or known is None or known.identity != broker
        version = registration.topics.data_version
        if broker.broker_id == MASTER:
            changed = is_new or known is None or known.version != version
            entries: dict[tuple[int, ...], dict[str, QueuesAtBroker]] = {}
            left_out: list[TopicConfig] = []
            for number, topic in enumerate(registration.topics.topics.values()):
                if not _is_sound(topic):
                    left_out.append(topic)
                elif changed or broker.name not in self._topics.get(topic.name, ()):
                    self._enter_topic(broker.name, topic, entries)
                if number % AT_ONCE == 0:
                    await yield_slice()
            if left_out:
                logger.warning(
                    "%d topics of broker %s are left out: %s has %s queues to read and %s to write, permission %s and"
                    " flag %s; it needs a printable name, 0 to %d queues, a permission of 0 to %d,"
                    " a flag of 32 bits",
                    *(len(left_out), broker.name, excerpt(left_out[0].name)),
                    *(excerpt(left_out[0].read_queues), excerpt(left_out[0].write_queues)),
                    *(excerpt(left_out[0].permission), excerpt(left_out[0].sys_flag), MAX_QUEUES, _ALL_PERMISSIONS),
                )
            if not self._has_address(broker):  # for example because the broker's former connection closed meanwhile
                await self.registering(broker, registration, now=now, ha_address=ha_address, connection=connection)
                return
            self._absent.returned(broker.name)
        self._live[broker.address] = _LiveBroker(broker, now, version, ha_address, connection)
        if registration.filter_servers:
            self._filter_servers[broker.address] = registration.filter_servers
        else:
            self._filter_servers.pop(broker.address, None)

    def _check_room(self, broker: BrokerIdentity, registration: BrokerRegistration, connection: object) -> None:
        names = (broker.name, broker.cluster, broker.address, *registration.filter_servers)
        if any(len(name) > MAX_NAME for name in names) or len(registration.filter_servers) > MAX_FILTER_SERVERS:
            raise BrokerError(
                f"a broker's name, cluster and addresses have at most {MAX_NAME} characters, and it has at most"
                f" {MAX_FILTER_SERVERS} filter servers"
            )
        if not all(name and name.isprintable() for name in names):
            raise BrokerError(f"a broker's name, cluster and addresses need printable characters: {names[:3]!r}")
        topics = registration.topics.topics
        if long := next((name for name in topics if len(name) > MAX_NAME), None):
            raise BrokerError(f"topic {long[:80]}... has {len(long)} characters; {MAX_NAME} is the most")
        own = {live.identity.name for live in self._live.values() if live.connection is connection}
        most = fair_share(self._max_brokers, len(self._live) - len(own), shares=2)
        if broker.address not in self._live and len(own) >= most:
            text = f"broker {broker.name} is not registered, this connection has {len(own)} and there are"
            raise LimitReached("maxRegisteredBrokers", self._max_brokers, f"{text} {len(self._live)}; stop some")
        held = self._held.get(broker.name, {})
        more = sum(name not in held for name in topics) if broker.broker_id == MASTER else 0
        of_own = sum(len(self._held.get(name, ())) for name in own)
        if more and of_own + more > fair_share(self._max_topics, self._count - of_own, shares=2, least=0):
            text = f"broker {broker.name} is not registered, it has {len(held) + more} topics and there are"
            raise LimitReached("maxRegisteredTopics", self._max_topics, f"{text} {self._count}; delete some")

    def _check_epoch(self, broker: BrokerIdentity) -> None:
        """Raise `BrokerError` for a former master of a replica set: its request may have been in progress for long."""
        known = self._brokers.get(broker.name)
        if broker.broker_id != MASTER or known is None or known.epoch is None:
            return
        master = known.addresses.get(MASTER)
        if broker.epoch is not None and broker.epoch < known.epoch:
            raise BrokerError(
                f"broker {broker.name} at {broker.address} is no longer the master: its epoch {broker.epoch} is lower"
                f" than epoch {known.epoch} of {master or 'the latest master'}"
            )
        if broker.epoch is None and broker.address != master:
            raise BrokerError(
                f"broker {broker.name} at {broker.address} cannot be the master: brokers of this name are a replica set"
                f" of epoch {known.epoch}, and it is not a replica; give it another name, or stop the replicas"
            )

    def _warn_of_another(self, broker: BrokerIdentity, connection: object) -> None:
        """Log that another connected broker has the same name and id.

        Clients then reach the broker that registered last, as in RocketMQ. A broker that moved to another address is
        not logged: its former connection is closed.
        """
        known = self._brokers.get(broker.name)
        address = known.addresses.get(broker.broker_id) if known is not None else None
        if address in (None, broker.address) or broker.epoch is not None:
            return
        live = self._live.get(address)
        if live is not None and live.connection not in (None, connection):
            logger.warning(
                "broker %s (id %d) registers from %s, and another broker of this name and id is connected from %s:"
                " clients reach only the one that registered last; give one of them another brokerName (--broker-name)",
                *(broker.name, broker.broker_id, broker.address, address),
            )

    def _has_address(self, broker: BrokerIdentity) -> bool:
        """Return whether the address of a broker is entered under its broker name."""
        known = self._brokers.get(broker.name)
        return known is not None and broker.address in known.addresses.values()

    def _enter_address(self, broker: BrokerIdentity) -> bool:
        """Enter the address of a broker.

        Return whether its broker name had another address, or none, under this broker id.
        """
        known = self._brokers.get(broker.name)
        addresses = dict(known.addresses) if known is not None else {}
        is_new = addresses.get(broker.broker_id) != broker.address
        if known is not None and known.cluster != broker.cluster:
            self._leave_cluster(known)
        # A broker that registers the same address under another id has changed its role.
        addresses = {key: value for key, value in addresses.items() if value != broker.address}
        addresses[broker.broker_id] = broker.address
        epoch, failover = (known.epoch, known.failover) if known is not None else (None, None)
        if broker.broker_id == MASTER:
            epoch, failover = broker.epoch, None
        self._brokers[broker.name] = BrokerAddresses(
            broker_name=broker.name,
            cluster=broker.cluster,
            addresses=dict(sorted(addresses.items())),
            epoch=epoch,
            failover=True if broker.epoch is not None else failover,
        )
        return is_new

    def _enter_topic(
        self, broker_name: str, topic: TopicConfig, entries: dict[tuple[int, ...], dict[str, QueuesAtBroker]]
    ) -> None:
        settings = (topic.permission, topic.read_queues, topic.write_queues, topic.sys_flag)
        own = entries.get(settings)
        if own is None:
            entry = QueuesAtBroker(
                broker_name=broker_name,
                permission=topic.permission,
                read_queues=topic.read_queues,
                write_queues=topic.write_queues,
                sys_flag=topic.sys_flag,
            )
            own = entries[settings] = {broker_name: entry}
        held = self._held.setdefault(broker_name, {})
        self._count += topic.name not in held
        held[topic.name] = None
        known = self._topics.get(topic.name)
        self._topics[topic.name] = own if known is None or known.keys() == own.keys() else known | own

    def unregister(self, broker: BrokerIdentity) -> None:
        """Remove a broker that unregisters. Raises `BrokerError` for a former master of a replica set."""
        self._check_epoch(broker)
        self._remove(broker.address, broker)

    def connection_closed(self, connection: object) -> list[str]:
        """Remove the brokers that registered over this connection; return their addresses."""
        gone = [address for address, live in self._live.items() if live.connection is connection]
        for address in gone:
            self._remove(address)
        return gone

    def expire(self, oldest: float) -> list[str]:
        """Remove the brokers whose last heartbeat is before `oldest`; return their addresses."""
        self._absent.expire(oldest - KEEP_SECONDS)
        gone = [address for address, live in self._live.items() if live.heard < oldest]
        for address in gone:
            self._remove(address)
        return gone

    def _remove(self, address: str, broker: BrokerIdentity | None = None) -> None:
        """Remove the address of a broker.

        The topics of a broker name left without addresses are also removed, and a cluster left without brokers.
        """
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
            self._brokers[identity.name] = msgspec.structs.replace(known, addresses=left)
            return
        del self._brokers[identity.name]
        self._leave_cluster(known)
        if held := self._held.get(identity.name):
            if live is not None:
                self._absent.note(identity.name, known.cluster, held, heard=live.heard)
            self._leaving[identity.name] = list(held)
            self.remove_some(identity.name)

    @property
    def is_leaving(self) -> bool:
        """Whether topics still have entries of a broker that left; routes never return such a broker."""
        return bool(self._leaving)

    def remove_some(self, broker_name: str | None = None) -> None:
        """Remove some entries of topics at a broker that left: at the broker with this name, or at any."""
        name = broker_name if broker_name is not None else next(iter(self._leaving))
        topics = self._leaving[name]
        for _ in range(min(AT_ONCE, len(topics))):
            self._forget_topic_at(topics.pop(), name)
        if not topics:
            del self._leaving[name]

    def _leave_cluster(self, broker: BrokerAddresses) -> None:
        names = self._clusters[broker.cluster]
        names.discard(broker.broker_name)
        if not names:
            del self._clusters[broker.cluster]

    def _forget_topic_at(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic, {})
        if broker_name not in queues:
            return
        self._count -= 1
        held = self._held[broker_name]
        held.pop(topic, None)
        if not held:
            del self._held[broker_name]
        if left := {name: entry for name, entry in queues.items() if name != broker_name}:
            self._topics[topic] = left
        else:
            del self._topics[topic]

    def version_of(self, address: str, now: float) -> DataVersion | None:
        """Return the version of a broker's topics, None for an unknown address; the request counts as a heartbeat."""
        live = self._live.get(address)
        if live is None:
            return None
        live.heard = now
        return live.version

    def master_of(self, broker_name: str) -> tuple[str | None, str | None]:
        """Return the address and the replication address of a broker's master; both are None without a master."""
        known = self._brokers.get(broker_name)
        address = known.addresses.get(MASTER) if known is not None else None
        live = self._live.get(address) if address is not None else None
        return (address, live.ha_address) if live is not None else (None, None)

    # -- requests of clients

    def route(self, topic: str) -> TopicRoute | None:
        """Return the brokers and queues of a topic; None if no live broker has the topic."""
        # Topics that are left to remove still have a broker that left.
        queues = [entry for name, entry in self._topics.get(topic, {}).items() if name in self._brokers]
        if not queues:
            return None
        brokers = [self._brokers[entry.broker_name] for entry in queues]
        servers = {
            address: self._filter_servers[address]
            for broker in brokers
            for address in broker.addresses.values()
            if address in self._filter_servers
        }
        return TopicRoute(brokers=brokers, queues=queues, filter_servers=servers)

    def cluster_table(self) -> ClusterTable:
        clusters = {cluster: sorted(names) for cluster, names in self._clusters.items()}
        return ClusterTable(brokers=dict(self._brokers), clusters=clusters, absent=self._absent.by_broker())

    def topics(self, wanted: Callable[[QueuesAtBroker], bool] | None = None) -> Iterator[str | None]:
        """Yield all topic names; with `wanted`, only topics whose first entry fulfils the condition.

        Yields None every 200 topics, so that the caller can interrupt the work.
        """
        for number, topic in enumerate(list(self._topics)):
            queues = self._topics.get(topic)
            if queues and (wanted is None or wanted(next(iter(queues.values())))):
                yield topic
            if number % AT_ONCE == 0:
                yield None

    def topics_of(self, cluster: str) -> Iterator[str | None]:
        """Yield the names of the topics in a cluster.

        Yields None every 200 topics, so that the caller can interrupt the work.
        """
        names = set(self._clusters.get(cluster, ()))
        for number, topic in enumerate(list(self._topics)):
            if not names.isdisjoint(self._topics.get(topic, ())):
                yield topic
            if number % AT_ONCE == 0:
                yield None

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of all clusters and brokers, which are topics, and the address of one broker.

        Without brokers, the address is None.
        """
        names = [*self._clusters, *self._brokers]
        first = next(iter(self._brokers.values()), None)
        return names, next(iter(first.addresses.values())) if first is not None else None

    # -- requests of operators

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Remove a topic at all brokers, or at the brokers of one cluster."""
        self._absent.delete_topic(topic, cluster or None)
        names = self._clusters.get(cluster, set()) if cluster else set(self._topics.get(topic, ()))
        for name in names:
            if topic in self._topics:
                self._forget_topic_at(topic, name)

    async def wipe_write_permission(self, broker_name: str) -> int:
        """Remove the write permission of all topics at a broker; return the number of topics.

        The permission returns when the broker registers a change.
        """
        return await self._change_permission(broker_name, lambda permission: permission & ~Permission.WRITE)

    async def add_write_permission(self, broker_name: str) -> int:
        """Make all topics of a broker readable and writable; return the number of topics."""
        return await self._change_permission(broker_name, lambda _: Permission.READ | Permission.WRITE)

    async def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for number, topic in enumerate(list(self._held.get(broker_name, ()))):
            queues = self._topics.get(topic, {})
            if (entry := queues.get(broker_name)) is not None:
                changed = msgspec.structs.replace(entry, permission=int(change(entry.permission)))
                self._topics[topic] = queues | {broker_name: changed}
                count += 1
            if number % AT_ONCE == 0:
                await yield_slice()
        return count

    def addresses(self) -> Iterable[str]:
        """Return the addresses of the live brokers."""
        return list(self._live)


def _is_sound(topic: TopicConfig) -> bool:
    """Return whether every client can read a route with the settings of this topic, at a reasonable cost."""
    return (
        0 <= topic.read_queues <= MAX_QUEUES
        and 0 <= topic.write_queues <= MAX_QUEUES
        and 0 <= topic.permission <= _ALL_PERMISSIONS
        and -(1 << 31) <= topic.sys_flag < 1 << 31
        and topic.name != ""
        and topic.name.isprintable()
    )


@dataclass(slots=True)
class _Absence:
    cluster: str
    heard: float
    topics: set[str]


class AbsentTopics:
    """The topics of brokers that left and have not registered again, kept for a day.

    From this table, a client that needs a whole topic learns that a part of the topic is missing. The oldest topics are
    dropped first. RocketMQ has no such table.
    """

    def __init__(self) -> None:
        self._brokers: dict[str, _Absence] = {}

    def note(self, broker_name: str, cluster: str, topics: Iterable[str], *, heard: float) -> None:
        """Store the topics of a broker that left; `heard` is the time of the last heartbeat (monotonic seconds)."""
        self._brokers.pop(broker_name, None)
        self._brokers[broker_name] = _Absence(cluster, heard, set(topics))
        while len(self._brokers) > MAX_ABSENT_BROKERS or self._count() > MAX_ABSENT_TOPICS:
            oldest = next(iter(self._brokers))
            del self._brokers[oldest]
            logger.warning("the topics of absent broker %s are dropped; the limit is %d", oldest, MAX_ABSENT_TOPICS)

    def returned(self, broker_name: str) -> None:
        """Remove a broker that has registered again."""
        self._brokers.pop(broker_name, None)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Remove a topic at all absent brokers, or at the absent brokers of one cluster."""
        for absence in self._brokers.values():
            if cluster is None or absence.cluster == cluster:
                absence.topics.discard(topic)

    def expire(self, oldest: float) -> None:
        """Remove the absent brokers whose last heartbeat is before `oldest`."""
        self._brokers = {name: absence for name, absence in self._brokers.items() if absence.heard >= oldest}

    def by_broker(self) -> dict[str, list[str]] | None:
        """Return the topics of each absent broker by broker name; None if no broker is absent."""
        return {name: list(absence.topics) for name, absence in self._brokers.items() if absence.topics} or None

    def _count(self) -> int:
        return sum(len(absence.topics) for absence in self._brokers.values())
