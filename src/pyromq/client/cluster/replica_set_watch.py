"""Watches the masters of replica sets for one client: asks for routes early, and leaves former masters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyromq.client.cluster.known_masters import MASTER
from pyromq.client.cluster.topic_routes import Route
from pyromq.clock import Clock
from pyromq.errors import ProtocolError
from pyromq.logs import logger_of
from pyromq.net.channel import Channel
from pyromq.remoting.bodies import BrokerAddresses, TopicRoute
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.headers import RouteOfTopic
from pyromq.remoting.json_quirks import decode_body

if TYPE_CHECKING:
    from pyromq.client.cluster.cluster_client import ClusterClient

logger = logger_of(__name__)

WATCH_SECONDS = 0.25  # interval of `look`: sends to a silent master wait this much longer than its successor needs
SILENT_SECONDS = 1.0  # a master that owes an answer so long may have a successor: ask the name server
REFRESH_SECONDS = 5.0  # interval between refreshes of routes with replica sets: pulls are silent for longer
FORMER_SECONDS = 1.0  # time for the last answers of a former master that is not silent
_HELD = frozenset({int(RequestCode.PULL_MESSAGE)})  # requests that brokers may hold for long


class ReplicaSetWatch:
    """Looks after the replica sets in one client's routes. Without replica sets it does nothing."""

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._compared: set[str] = set()  # topics whose routes are being compared
        cluster.routes.on_master_change.append(self._leave_former)

    async def look(self) -> None:
        """Refresh the routes of replica sets that are older than `REFRESH_SECONDS`, and one of each silent master."""
        of_sets = [route for route in self._cluster.routes.known.values() if route.epochs]
        due = {route.topic for route in of_sets if self._cluster.route_age(route.topic) >= REFRESH_SECONDS}
        # One topic is enough: all routes take the addresses of a broker name from the route that was fetched last.
        one_topic = {(name, route.master(name)): route.topic for route in of_sets for name in route.epochs}
        due |= {topic for (_, master), topic in one_topic.items() if master is not None and self._is_silent(master)}
        await asyncio.gather(*(self._cluster.refresh(topic) for topic in due))

    def compare_soon(self, topic: str) -> None:
        """Ask all name servers for the route of a topic with replica sets: the usual one may be behind."""
        route, addresses = self._cluster.routes.find(topic), self._cluster.name_servers.addresses
        if route is None or not route.epochs or len(addresses) < 2 or topic in self._compared:
            return
        self._compared.add(topic)
        self._cluster.tasks.start(self._compare(topic, list(addresses)), name=f"compare routes of {topic}")

    async def _compare(self, topic: str, addresses: list[str]) -> None:
        try:
            await asyncio.gather(*(self._compare_at(address, topic) for address in addresses))
        finally:
            self._compared.discard(topic)

    async def _compare_at(self, address: str, topic: str) -> None:
        """Learn a name server's route if it has a later master, or a master where none is known."""
        question = RouteOfTopic(topic=self._cluster.names.wrap(topic), standard_json_only=True)
        response = await self._cluster.name_servers.response_of(address, question)
        known = self._cluster.routes.find(topic)
        if response is None or response.code != 0 or known is None:
            return
        try:
            body = decode_body(TopicRoute, response.body)
            if any(_is_news(known, broker) for broker in body.brokers):
                self._cluster.learn_route(topic, body)
        except ProtocolError as error:
            logger.debug("the route of %s at name server %s is left out: %s", topic, address, error)

    def _is_silent(self, address: str) -> bool:
        channel = self._cluster.open_channel(self._cluster.sending_address(address))
        return channel is not None and channel.session.oldest_wait(_HELD) >= SILENT_SECONDS

    def _leave_former(self, broker_name: str, former: str, present: str) -> None:
        """Close the connections to a former master: its unanswered requests are then sent to the successor.

        A former master that is not silent has `FORMER_SECONDS` for its last answers.
        """
        logger.info("the master of broker %s is now %s; it was %s", broker_name, present, former)
        if self._cluster.running:  # a master that does not know a producer cannot ask it about transactions
            self._cluster.tasks.start(self._cluster.heartbeat(), name=f"heartbeat to {present}")
        wait = 0.0 if self._is_silent(former) else FORMER_SECONDS
        for address in {former, self._cluster.sending_address(former)}:
            if self._cluster.running and (channel := self._cluster.open_channel(address)) is not None:
                work = self._cut_later(channel, broker_name, former, wait)
                self._cluster.tasks.start(work, name=f"leave former master {address}")

    async def _cut_later(self, channel: Channel, broker_name: str, former: str, seconds: float) -> None:
        await self._clock.sleep(seconds)
        if self._cluster.routes.present_master(broker_name) != former:
            channel.cut()


def _is_news(known: Route, broker: BrokerAddresses) -> bool:
    epoch = known.epochs.get(broker.broker_name)
    if broker.broker_name not in known.epochs or broker.epoch is None or MASTER not in broker.addresses:
        return False
    return epoch is None or broker.epoch > epoch or known.master(broker.broker_name) is None
