"""Which queues are ours: asks who else is in the group, shares the queues, takes new ones and gives others away.

Source: RocketMQ 4.9.8, RebalanceImpl and RebalanceService.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from pyromq.client.cluster.cluster_client import REFRESH_PAUSE, ClusterClient
from pyromq.client.cluster.routes import Route
from pyromq.client.config import ConsumerConfig, Strategy
from pyromq.client.consumer.assignment import Owned
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound, Unavailable
from pyromq.logs import Tracebacks, logger_of
from pyromq.message import MessageQueue
from pyromq.names import RETRY_PREFIX
from pyromq.remoting.bodies import ConsumerIds, decode_body
from pyromq.remoting.headers import ConsumerList

logger = logger_of(__name__)

# After a run that could not take or share everything: soon, then later and later. Source: RocketMQ 5, RebalanceService.
SOON_SECONDS = 0.05
AGAIN_SECONDS = 1.0
LATER = 1.2
RETURN_SECONDS = 2.0  # how long members may need to come back to a broker that was away; they try each second


Q = TypeVar("Q", bound=Owned)


def _never(owned: object) -> str:
    return ""


async def _nothing() -> None:
    pass


class Rebalance(Generic[Q]):
    """Keeps `owned` as the strategy says, for the topics that `topics` gives.

    `take(queues)` begins to consume queues and returns those it could; `give(queues)` ends consuming them; `settle()`
    comes when `owned` is as both have left it. `stuck(owned)` says why one has to be taken again, "" when it need not.
    All are called from one task, one after the other.
    """

    def __init__(
        self,
        owned: dict[MessageQueue, Q],
        group: str,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        clock: Clock,
        strategy: Strategy,
        topics: Callable[[], Iterable[str]],
        take: Callable[[list[MessageQueue]], Awaitable[list[Q]]],
        give: Callable[[list[Q]], Awaitable[None]],
        settle: Callable[[], Awaitable[None]] = _nothing,
        stuck: Callable[[Q], str] = _never,
    ) -> None:
        self.owned = owned
        self._group = group
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._strategy = strategy
        self._tracebacks = Tracebacks(clock)
        self._topics = topics
        self._take = take
        self._give = give
        self._settle = settle
        self._stuck = stuck
        self._woken = asyncio.Event()
        self._said: dict[str, str] = {}  # troubles by topic, each told once
        self._seen: list[str] = []  # the members, as far as we know
        self._away: set[str] = set()  # brokers that we lost the connection to
        self._believed_from: dict[str, float] = {}  # monotonic; when a broker that was away knows its members again

    def wake(self, *_: object) -> None:
        """Share the queues out again, soon."""
        self._woken.set()

    def look_again(self) -> None:
        """A broker says that the group's members or a topic's queues are others: ask, and share again, soon."""
        if self._cluster.running:
            self._cluster.tasks.start(self._refresh_routes(), name=f"routes of {self._group}")
        self.wake()

    async def _refresh_routes(self) -> None:
        await self._clock.sleep(REFRESH_PAUSE)  # a route that is fresh by then is younger than the notice
        await self._cluster.refresh_all()

    async def run(self) -> None:
        """Rebalance now, when woken, and every `rebalance_seconds`, for ever."""
        self._cluster.on_connection_lost.append(self._away.add)
        soon = SOON_SECONDS
        while True:
            self._woken.clear()
            try:
                balanced = await self.once()
            except Exception as error:  # as a strategy of the application's may raise
                counted, traceback = self._tracebacks.count(error)
                text = "group %s: sharing the queues failed; they stay as they are%s"
                logger.exception(text, self._group, counted, exc_info=traceback)
                balanced = True
            most = self._config.rebalance_seconds
            news = await self._sleep(most if balanced else min(soon, most))
            soon = SOON_SECONDS if balanced or news else min(LATER * soon, AGAIN_SECONDS)

    async def _sleep(self, seconds: float) -> bool:
        """Wait until woken, at most `seconds`; true when woken."""
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        alarm.add_done_callback(self.wake)
        try:
            await self._woken.wait()
            return not alarm.done()
        finally:
            alarm.remove_done_callback(self.wake)
            alarm.cancel()

    async def once(self) -> bool:
        """Share the queues of every topic; false when something is left to be done soon."""
        members: dict[str, list[str]] = {}  # by broker asked, so that each is asked once
        topics = list(self._topics())
        balanced = True
        wanted: set[MessageQueue] = set()
        for topic in topics:
            share = await self._share(topic, members)
            if share is None:  # not to be told now: the topic's queues stay with us
                balanced = False
                wanted.update(queue for queue in self.owned if queue.topic == topic)
            else:
                wanted.update(share)
        doubted = any(self._clock.monotonic() < moment for moment in self._believed_from.values())
        return await self._become(wanted) and balanced and not doubted

    async def _become(self, wanted: set[MessageQueue]) -> bool:
        """Give away what is not wanted, take what is; false when a queue could not be taken."""
        lost = [owned for queue, owned in self.owned.items() if queue not in wanted]
        stuck = [owned for queue, owned in self.owned.items() if queue in wanted and self._is_stuck(owned)]
        given = {owned.queue for owned in lost + stuck}
        new = sorted(wanted - (self.owned.keys() - given))
        if lost or new:
            logger.info("group %s: takes %d queues, gives away %d", self._group, len(new), len(lost))
        if given:
            await self._give(lost + stuck)
            for queue in given:
                del self.owned[queue]
        taken = await self._take(new) if new else []
        for owned in taken:
            self.owned.setdefault(owned.queue, owned)  # who has entered it when it began may have replaced it since
        if given or taken:
            await self._settle()
        return len(taken) == len(new)

    def _is_stuck(self, owned: Q) -> bool:
        if why := self._stuck(owned):
            logger.warning("group %s: %s %s; it is taken again", self._group, owned.queue, why)
        return bool(why)

    async def _share(self, topic: str, members: dict[str, list[str]]) -> list[MessageQueue] | None:
        """Return our queues of a topic; None when that cannot be told now."""
        try:
            route = await self._cluster.route(topic)
            if self._config.broadcast:
                return list(route.readable)
            clients = await self._members(route, members)
            queues = sorted(route.readable)
            share = self._allocate(queues, clients) if queues else []
        except TopicNotFound:
            if not topic.startswith(
                RETRY_PREFIX
            ):  # brokers make that one themselves, a moment after the first heartbeat
                self._say(topic, f"topic {topic} does not exist yet; waiting for it")
            return None
        except MQError as error:
            self._say(topic, f"queues of topic {topic} stay as they are: {error}")
            return None
        self._said.pop(topic, None)
        return share

    def _allocate(self, queues: list[MessageQueue], clients: list[str]) -> list[MessageQueue]:
        """Return our share. Strategies see brokers' names, as those of the group's members in Java do."""
        names = self._cluster.names
        wire_queues = [names.wrap_queue(queue) for queue in queues]
        share = self._strategy(self._group, self._cluster.client_id, wire_queues, clients)
        return [names.unwrap_queue(queue) for queue in share]

    async def _members(self, route: Route, members: dict[str, list[str]]) -> list[str]:
        """Return the group's members, in order, as one broker of the topic knows them."""
        addresses = [by_id.get(0) or next(iter(by_id.values())) for by_id in route.addresses.values() if by_id]
        if not addresses:
            raise Unavailable("no broker of the topic is known")
        address = next((a for a in addresses if a in members), None) or random.choice(addresses)
        if address not in members:
            self._seen = members[address] = self._believed(address, await self._ask_members(address))
        return members[address]

    def _believed(self, address: str, found: list[str]) -> list[str]:
        """Return the members that a broker tells of, while it may lack some of them with those we have seen before.

        To a broker that was started again they come back one after the other. Who is first must not take the queues of
        all: they still work on them, and the broker's offsets are old.
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
            await self._cluster.heartbeat()  # the broker has forgotten us, or has not heard of us yet
        raise Unavailable(f"broker {address} does not count this client among the members of group {self._group}")

    def _say(self, subject: str, text: str) -> None:
        if self._said.get(subject) != text:
            self._said[subject] = text
            logger.warning("group %s: %s", self._group, text)
