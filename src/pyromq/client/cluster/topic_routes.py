"""Routes of topics, as clients use them: writable and readable queues, and the brokers' addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pyromq.client.cluster.known_masters import MASTER, KnownMasters
from pyromq.errors import ProtocolError
from pyromq.excerpt import excerpt
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import MAX_QUEUES, BrokerAddresses, QueuesAtBroker, TopicRoute
from pyromq.remoting.codes import Permission

# Limit of a topic's readable and writable queues at all brokers together: about 80 MB in a client.
MAX_ROUTE_QUEUES = 8 * MAX_QUEUES
_MAX_DIGITS = 20  # limit of the digits read of a queue count: far more than a legal count has


@dataclass(frozen=True, slots=True)
class Route:
    """The route of one topic; `writable` and `readable` queues are in order of broker name and queue id."""

    topic: str
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    addresses: dict[str, dict[int, str]]  # by broker name and broker id: `host:port`
    epochs: dict[str, int | None] = field(default_factory=dict)  # masters' epochs by broker name, of replica sets only

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, which takes messages and offsets; None if none is registered."""
        return self.addresses.get(broker_name, {}).get(MASTER)

    def replica(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        """Return the address of a broker to read from; None if none is registered.

        This is the broker with `broker_id`, else with the next id, else any.
        """
        known = self.addresses.get(broker_name, {})
        wanted = known.get(broker_id) or (known.get(broker_id + 1) if broker_id else None)
        return wanted or next(iter(known.values()), None)


def read_route(topic: str, body: TopicRoute) -> Route:
    """Return the route in a name server's response. Raises `ProtocolError` if its queue counts exceed a limit.

    Source: MQClientInstance.topicRouteData2TopicPublishInfo.
    """
    ordered = list(_ordered_counts(body.order_conf or ""))
    counts = [(each.broker_name, count) for each in body.queues for count in (each.read_queues, each.write_queues)]
    _check_counts(topic, counts + ordered)
    addresses = {broker.broker_name: dict(broker.addresses) for broker in body.brokers}
    epochs = {each.broker_name: each.epoch for each in body.brokers if each.failover or each.epoch is not None}
    queues = sorted(body.queues, key=lambda each: each.broker_name)
    if body.order_conf:
        writable = tuple(MessageQueue(topic, name, queue_id) for name, count in ordered for queue_id in range(count))
    else:
        # A replica set without a master will soon have one: its queues stay, so that keys keep their queues.
        names = {name for name, by_id in addresses.items() if MASTER in by_id or name in epochs}
        writable = tuple(_writable(topic, queues, names))
    return Route(topic, writable, tuple(_readable(topic, queues)), addresses, epochs)


def route_for_new_topic(topic: str, template: TopicRoute, new_queues: int) -> Route:
    """Return the route of an auto-created topic.

    It is the template topic's route with at most `new_queues` queues per broker.
    """
    queues = [_cut(at_broker, new_queues) for at_broker in template.queues]
    return read_route(topic, TopicRoute(brokers=template.brokers, queues=queues, order_conf=template.order_conf))


def _check_counts(topic: str, counts: list[tuple[str, int]]) -> None:
    """Raise `ProtocolError` for an illegal queue count, before an object is made for each queue."""
    for broker_name, count in counts:
        if not 0 <= count <= MAX_QUEUES:
            raise ProtocolError(
                f"the route of topic {topic} has {excerpt(count)} queues at broker {excerpt(broker_name)}; a broker has"
                f" 0 to {MAX_QUEUES}. See which broker registers that: `pyromq topic route {topic}`"
            )
    if (total := sum(count for _, count in counts)) > MAX_ROUTE_QUEUES:
        raise ProtocolError(
            f"the route of topic {topic} has {total} queues to read and to write; the limit is {MAX_ROUTE_QUEUES}."
            f" See which brokers register them: `pyromq topic route {topic}`"
        )


def _cut(at_broker: QueuesAtBroker, new_queues: int) -> QueuesAtBroker:
    count = min(new_queues, at_broker.read_queues)
    return QueuesAtBroker(at_broker.broker_name, at_broker.permission, count, count, at_broker.sys_flag)


def _writable(topic: str, queues: list[QueuesAtBroker], broker_names: set[str]) -> Iterator[MessageQueue]:
    for at_broker in queues:
        if at_broker.permission & Permission.WRITE and at_broker.broker_name in broker_names:
            for queue_id in range(at_broker.write_queues):
                yield MessageQueue(topic, at_broker.broker_name, queue_id)


def _readable(topic: str, queues: list[QueuesAtBroker]) -> Iterator[MessageQueue]:
    for at_broker in queues:
        if at_broker.permission & Permission.READ:
            for queue_id in range(at_broker.read_queues):
                yield MessageQueue(topic, at_broker.broker_name, queue_id)


def _ordered_counts(order_conf: str) -> Iterator[tuple[str, int]]:
    """Yield brokers and queue counts of an order topic, `broker-a:4;broker-b:4`; malformed entries are skipped."""
    for part in order_conf.split(";"):
        broker_name, _, count = part.partition(":")
        if broker_name and count.isdecimal():
            yield broker_name, int(count[:_MAX_DIGITS])


class Routes:
    """The known routes of a client. They stay in use while no name server answers.

    `on_master_change` is called with a broker name, the former and the present address, when the master of a replica
    set has changed, or when a replica's refusal names another master.
    """

    def __init__(self) -> None:
        self.known: dict[str, Route] = {}
        self.on_master_change: list[Callable[[str, str, str], None]] = []
        self._masters = KnownMasters()
        self._present: dict[str, str] = {}  # latest masters' addresses by broker name
        self._first: dict[str, frozenset[MessageQueue]] = {}  # by topic: readable queues of its first known route

    def find(self, topic: str) -> Route | None:
        return self.known.get(topic)

    def learn(self, route: Route) -> bool:
        """Store a topic's route, with the masters that this client believes in. Return whether the route is new."""
        believed = {
            name: self._masters.believed(name, by_id, route.epochs.get(name)) for name, by_id in route.addresses.items()
        }
        route = replace(
            route,
            addresses={name: by_id for name, (by_id, _) in believed.items()},
            epochs={name: epoch for name, (_, epoch) in believed.items() if name in route.epochs},
        )
        if is_new := self.known.get(route.topic) != route:
            self.known[route.topic] = route
        self._first.setdefault(route.topic, frozenset(route.readable))
        for name in route.epochs:
            self._spread(name, route)
        self._note_masters(route)
        return is_new

    def redirect(self, broker_name: str, master: str | None) -> None:
        """Use `master`, which a replica's refusal has named, in all routes; None: the replica knows no master."""
        if master is None:
            self._masters.doubt(broker_name)
            return
        route = next((route for route in self.known.values() if broker_name in route.addresses), None)
        if route is None or (before := route.master(broker_name)) == master:
            return
        self._masters.name(broker_name, master, refused=before, epoch=route.epochs.get(broker_name))
        by_id, _ = self._masters.believed(broker_name, route.addresses[broker_name], route.epochs.get(broker_name))
        moved = replace(route, addresses=route.addresses | {broker_name: by_id})
        self._spread(broker_name, moved)
        self._note_masters(moved, named=broker_name)

    def present_master(self, broker_name: str) -> str | None:
        """Return the latest master's address of a broker name; None if no known route has had one."""
        return self._present.get(broker_name)

    def believed(self, broker: BrokerAddresses) -> dict[int, str]:
        """Return the addresses, by broker id, to use for a broker name in a name server's answer."""
        return self._masters.believed(broker.broker_name, dict(broker.addresses), broker.epoch)[0]

    def unreachable(self, address: str) -> None:
        """Forget that refusals have named this address: the next fetched routes count."""
        self._masters.unreachable(address)

    def _spread(self, broker_name: str, route: Route) -> None:
        """Enter the addresses of a broker name in all known routes: all topics of the name have the same brokers."""
        by_id, epoch = route.addresses[broker_name], route.epochs.get(broker_name)
        for topic, known in self.known.items():
            if broker_name in known.addresses and known.addresses[broker_name] != by_id:
                addresses = known.addresses | {broker_name: by_id}
                epochs = known.epochs | {broker_name: epoch} if broker_name in route.epochs else known.epochs
                self.known[topic] = replace(known, addresses=addresses, epochs=epochs)

    def _note_masters(self, route: Route, *, named: str | None = None) -> None:
        for name, by_id in route.addresses.items():
            if (master := by_id.get(MASTER)) is None:
                continue
            before = self._present.get(name, master)
            self._present[name] = master
            if before != master and (name in route.epochs or name == named):
                for tell in self.on_master_change:
                    tell(name, before, master)

    def forget(self, topic: str) -> None:
        self.known.pop(topic, None)

    def forget_unknown(self) -> None:
        """Forget all that is noted of topics without a known route. For clients that do not use `is_later`."""
        self._first = {topic: queues for topic, queues in self._first.items() if topic in self.known}

    def miss(self, topic: str) -> None:
        """Note that the topic does not exist now: `is_later` will be True for all its queues."""
        self._first[topic] = frozenset()

    def is_later(self, queue: MessageQueue) -> bool:
        """Return whether a queue was added to its topic after the first fetch of the topic's route."""
        return queue not in self._first.get(queue.topic, (queue,))

    @property
    def topics(self) -> list[str]:
        return list(self.known)

    def broker_addresses(self, *, masters_only: bool = False) -> set[str]:
        """Return the addresses of all brokers in known routes; only those of masters with `masters_only`."""
        return {
            address
            for route in self.known.values()
            for by_id in route.addresses.values()
            for broker_id, address in by_id.items()
            if broker_id == MASTER or not masters_only
        }
