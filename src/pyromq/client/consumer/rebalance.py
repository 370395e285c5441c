"""Assigns queues to this member: fetches the group's members, runs the allocation strategy, acquires and revokes.

Source: RocketMQ 4.9.8, RebalanceImpl and RebalanceService.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.cluster.cluster_client import REFRESH_PAUSE, ClusterClient
from pyromq.client.cluster.topic_routes import Route
from pyromq.client.consumer.allocation import averaging
from pyromq.client.consumer.assignment import Assigned
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound, Unavailable
from pyromq.logs import Tracebacks, logger_of
from pyromq.message import MessageQueue
from pyromq.names import RETRY_PREFIX
from pyromq.remoting.bodies import ConsumerIds, decode_body
from pyromq.remoting.headers import ConsumerList

logger = logger_of(__name__)

# Pauses after an incomplete rebalance: the first, the longest, the factor of growth.
# Source: RocketMQ 5, RebalanceService.
SOON_SECONDS = 0.05
AGAIN_SECONDS = 1.0
LATER = 1.2
RETURN_SECONDS = 2.0  # time for members to register again at a restarted broker; each member retries every second


Q = TypeVar("Q", bound=Assigned)


async def _nothing() -> None:
    pass


class Rebalance(Generic[Q]):
    """Keeps `assigned` equal to the result of the configured strategy for the topics that `topics` returns.

    `acquire(queues)` begins to consume queues and returns the acquired ones. `revoke(queues)` ends consuming queues.
    `settle()` is called after each change of `assigned`. `stuck(assigned)` returns why a queue must be acquired again,
    or "". One task makes all calls, one after the other.
    """

    def __init__(
        self,
        assigned: dict[MessageQueue, Q],
        group: str,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        clock: Clock,
        topics: Callable[[], Iterable[str]],
        acquire: Callable[[list[MessageQueue]], Awaitable[list[Q]]],
        revoke: Callable[[list[Q]], Awaitable[None]],
        settle: Callable[[], Awaitable[None]] = _nothing,
        stuck: Callable[[Q], str] = lambda _: "",
    ) -> None:
        self.assigned = assigned
        self._group = group
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._strategy = config.strategy or averaging
        self._tracebacks = Tracebacks(clock)
        self._topics = topics
        self._acquire = acquire
        self._revoke = revoke
        self._settle = settle
        self._stuck = stuck
        self._woken = asyncio.Event()
        self._logged: dict[str, str] = {}  # why each topic had no share at the latest rebalance; "": it does not exist
        self._seen: list[str] = []  # the group's members in the latest answer of a broker
        # Addresses of brokers to which the connection was lost, until they are asked again.
        self._away: set[str] = set()
        self._believed_from: dict[str, float] = {}  # by address: monotonic seconds when all members are back

    def wake(self, *_: object) -> None:
        """Trigger a rebalance soon. Arguments are ignored, so that this can be a callback."""
        self._woken.set()

    def look_again(self) -> None:
        """Refresh the routes and rebalance soon: the group's members or a topic's queues have changed."""
        if self._cluster.running:
            self._cluster.tasks.start(self._refresh_routes(), name=f"routes of {self._group}")
        self.wake()

    async def _refresh_routes(self) -> None:
        await self._clock.sleep(REFRESH_PAUSE)  # routes younger than this pause would not be fetched again
        await self._cluster.refresh_all()

    async def run(self) -> None:
        """Rebalance immediately, when woken, and every `rebalance_seconds`, until the task is cancelled."""
        self._cluster.on_connection_lost.append(self._away.add)
        # A new master learns of the members one after the other, as a restarted broker does.
        self._cluster.routes.on_master_change.append(lambda _, former, present: self._away.add(present))
        soon = SOON_SECONDS
        while True:
            self._woken.clear()
            try:
                balanced = await self.once()
            except Exception as error:  # for example raised by the application's strategy
                counted, traceback = self._tracebacks.count(error)
                text = "group %s: the rebalance failed, the assignment is unchanged%s"
                logger.exception(text, self._group, counted, exc_info=traceback)
                balanced = True
            most = self._config.rebalance_seconds
            news = await self._sleep(most if balanced else min(soon, most))
            soon = SOON_SECONDS if balanced or news else min(LATER * soon, AGAIN_SECONDS)

    async def _sleep(self, seconds: float) -> bool:
        """Wait at most `seconds` for a call of `wake`. Return whether `wake` was called."""
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        alarm.add_done_callback(self.wake)
        try:
            await self._woken.wait()
            return not alarm.done()
        finally:
            alarm.remove_done_callback(self.wake)
            alarm.cancel()

    async def once(self) -> bool:
        """Rebalance all topics once. Return False if the result is incomplete and the next rebalance must come soon."""
        members: dict[str, list[str]] = {}  # client ids by broker address: each broker is asked once
        unknown: dict[str, MQError] = {}  # topics whose share is unknown now: their assignment stays
        wanted: set[MessageQueue] = set()
        for topic in list(self._topics()):
            try:
                wanted.update(await self._share(topic, members))
            except MQError as error:
                unknown[topic] = error
                wanted.update(queue for queue in self.assigned if queue.topic == topic)
        self._log_unknown(unknown)
        doubted = any(self._clock.monotonic() < moment for moment in self._believed_from.values())
        return await self._become(wanted) and not unknown and not doubted

    async def _become(self, wanted: set[MessageQueue]) -> bool:
        """Revoke the queues that are not wanted, acquire the new ones. Return False if a new queue was not acquired."""
        lost = [assigned for queue, assigned in self.assigned.items() if queue not in wanted]
        stuck = self._stuck_queues(wanted)
        given = {assigned.queue for assigned in lost + stuck}
        new = sorted(wanted - (self.assigned.keys() - given))
        if lost or new:
            logger.info("group %s: %d queues assigned, %d revoked", self._group, len(new), len(lost))
        if given:
            await self._revoke(lost + stuck)
            for queue in given:
                del self.assigned[queue]
        taken = await self._acquire(new) if new else []
        for assigned in taken:
            self.assigned.setdefault(assigned.queue, assigned)  # a reset may have replaced the queue's entry meanwhile
        if given or taken:
            await self._settle()
        return len(taken) == len(new)

    def _stuck_queues(self, wanted: set[MessageQueue]) -> list[Q]:
        """Return the wanted queues that must be acquired again, and log them, one line for each reason."""
        stuck: dict[str, list[Q]] = {}
        for queue, assigned in self.assigned.items():
            if queue in wanted and (why := self._stuck(assigned)):
                stuck.setdefault(why, []).append(assigned)
        for why, queues in stuck.items():
            names = ", ".join(str(assigned.queue) for assigned in queues)
            logger.warning("group %s: queues that %s are acquired again: %s", self._group, why, names)
        return [assigned for queues in stuck.values() for assigned in queues]

    async def _share(self, topic: str, members: dict[str, list[str]]) -> list[MessageQueue]:
        """Return the queues of a topic that this member must have. Raises `MQError` if they are unknown now."""
        route = await self._cluster.route(topic)
        if self._config.broadcast:
            return list(route.readable)
        clients = await self._members(route, members)
        queues = sorted(route.readable)
        return self._allocate(queues, clients) if queues else []

    def _allocate(self, queues: list[MessageQueue], clients: list[str]) -> list[MessageQueue]:
        """Run the strategy with names that include the namespace, as strategies of Java members see them."""
        names = self._cluster.names
        wire_queues = [names.wrap_queue(queue) for queue in queues]
        share = self._strategy(self._group, self._cluster.client_id, wire_queues, clients)
        return [names.unwrap_queue(queue) for queue in share]

    async def _members(self, route: Route, members: dict[str, list[str]]) -> list[str]:
        """Return the client ids of the group's members, sorted, as one broker of the topic knows them."""
        addresses = [by_id.get(0) or next(iter(by_id.values())) for by_id in route.addresses.values() if by_id]
        if not addresses:
            raise Unavailable("no broker of the topic is known")
        address = next((a for a in addresses if a in members), None) or random.choice(addresses)
        if address not in members:
            self._seen = members[address] = self._believed(address, await self._ask_members(address))
        return members[address]

    def _believed(self, address: str, found: list[str]) -> list[str]:
        """Return the members that a broker reports; shortly after its restart, also the members known before it.

        Members register at a restarted broker one after the other. The first member must not acquire all queues: the
        other members still consume them, and the broker's offsets are old.
        """
        now = self._clock.monotonic()
        if address in self._away:
            self._away.discard(address)
            self._believed_from[address] = now + RETURN_SECONDS
        return found if now >= self._believed_from.get(address, now) else sorted({*found, *self._seen})

    async def _ask_members(self, address: str) -> list[str]:
        for _ in range(2):
            question = ConsumerList(consumer_group=self._group)
            response = await self._cluster.ask(address, question)
            found = decode_body(ConsumerIds, response.body).client_ids if response.code == 0 and response.body else []
            if self._cluster.client_id in found:
                return sorted(found)
            await self._cluster.heartbeat()  # the broker has forgotten this client, or does not know it yet
        raise Unavailable(f"broker {address} does not count this client among the members of group {self._group}")

    def _log_unknown(self, unknown: dict[str, MQError]) -> None:
        """Log why topics have no share now: one line for each reason, and none for a reason logged before."""
        reasons = {topic: "" if isinstance(error, TopicNotFound) else str(error) for topic, error in unknown.items()}
        new: dict[str, list[str]] = {}
        for topic, reason in reasons.items():
            if self._logged.get(topic) != reason and (reason or not topic.startswith(RETRY_PREFIX)):
                new.setdefault(reason, []).append(topic)
        self._logged = reasons
        for reason, topics in new.items():
            names = ", ".join(topics)
            if reason:
                logger.warning("group %s: queues of topics %s stay as they are: %s", self._group, names, reason)
            else:  # a retry topic is left out: brokers create it soon after the first heartbeat
                logger.warning("group %s: waiting for topics that do not exist yet: %s", self._group, names)
