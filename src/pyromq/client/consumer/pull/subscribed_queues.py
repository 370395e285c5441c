"""The queues that a pull consumer gets by subscribing: its group's members share them, as those of push consumers do.

Takes queues where the group has committed, and gives them away once the application is done with what it got of them
and that is committed. The queues' locks only make the next owner wait for this; nothing depends on them. Which queues
are ours is for the rebalance to say, how far the application is for `Positions` to know.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Sequence

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.allocation import averaging
from pyromq.client.consumer.application_code import was_thrown_in
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue
from pyromq.client.consumer.pull.positions import Positions
from pyromq.client.consumer.pull.prefetch import Fetching
from pyromq.client.consumer.pull.queue_watch import QueueListener
from pyromq.client.consumer.push.lock_renewal import RENEW_SECONDS
from pyromq.client.consumer.push.queue_ownership import HAND_OVER_SECONDS, PATIENCE_SECONDS
from pyromq.client.consumer.queue_locks import Locks
from pyromq.client.consumer.rebalance import Rebalance
from pyromq.client.consumer.subscriptions import Subscriptions
from pyromq.clock import Clock
from pyromq.errors import MQError, UsageError
from pyromq.message import MessageQueue
from pyromq.net.tasks import every
from pyromq.remoting.bodies import Subscription

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.01  # while a queue is given away: an iterating thread tells nobody that it is done with a message


class Sharing:
    """The subscriptions of one pull consumer, and the tasks that keep `assigned` as the group's strategy says.

    `changed` is called when `assigned` has changed.
    """

    def __init__(
        self,
        group: str,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        clock: Clock,
        assigned: dict[MessageQueue, AssignedQueue],
        positions: Positions,
        fetching: Fetching,
        changed: Callable[[], None],
    ) -> None:
        self.used = False  # from the first subscription on
        self._group = group
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._assigned = assigned
        self._positions = positions
        self._fetching = fetching
        self._changed = changed
        self._locks = Locks(group, cluster)
        self._locked: set[MessageQueue] = set()
        self._refused: dict[MessageQueue, float] = {}  # since when (monotonic) another has its lock
        self._troubled: set[MessageQueue] = set()
        self._subscriptions = Subscriptions[QueueListener | None](
            group, cluster, clock, retries=False, joined=self._joined
        )
        self._told: dict[str, list[MessageQueue]] = {}  # our queues of a topic when its listener was called last
        self._running = False
        self._rebalance = Rebalance(
            assigned,
            group,
            cluster,
            config,
            clock=clock,
            strategy=config.strategy or averaging,
            topics=lambda: self._subscriptions.topics,
            take=self._take,
            give=self._give,
            settle=self._settle,
        )

    def subscribe(self, topic: str, tags: str, listener: QueueListener | None) -> None:
        """Take part in a topic, from now on or, before `start`, from then on."""
        if self._config.broadcast:
            raise UsageError("a pull consumer does not broadcast: assign() all queues, with a group for each reader")
        self.used = True
        self._told[topic] = []
        self._subscriptions.add(topic, tags, listener)
        for assigned in self._assigned.values():
            if assigned.queue.topic == topic and assigned.tags != tags and not assigned.leaving:
                assigned.tags = tags
                self._fetching.begin(assigned)

    def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues away, soon."""
        self._subscriptions.remove(topic)

    def subscriptions(self) -> list[Subscription]:
        """What heartbeats say."""
        return self._subscriptions.announced()

    async def start(self) -> None:
        """Join the group, if there is a subscription; the first queues come soon."""
        if self._subscriptions.topics:
            await self._subscriptions.announce()

    async def leave(self) -> None:
        """Give the locks back; offsets are stored and the tasks of the client stopped before."""
        self._running = False
        await self._unlock(list(self._locked))

    def wake(self) -> None:
        """Members or queues are others: share the queues out again, soon."""
        self._rebalance.look_again()

    def _joined(self) -> None:
        """Brokers know what we subscribe to: share, from the first time on."""
        if self._running:
            self._rebalance.wake()
            return
        self._running = True
        self._cluster.on_connection_lost.append(self._connection_lost)
        start = self._cluster.tasks.start
        start(self._rebalance.run(), name=f"rebalance {self._group}")
        start(every(RENEW_SECONDS, self._renew_locks, self._clock), name=f"locks of {self._group}")

    def _connection_lost(self, address: str) -> None:
        if self._locked:
            self._cluster.tasks.start(self._renew_locks(), name=f"lock again at {address}")

    async def _renew_locks(self) -> None:
        await self._locks.lock(self._locked)

    async def _take(self, queues: Sequence[MessageQueue]) -> list[AssignedQueue]:
        """Return those of the queues that could be taken; what they hold is pulled once `_settle` is called."""
        self._refused = {queue: since for queue, since in self._refused.items() if queue in queues}
        held = await self._locks.lock(queues)
        self._locked.update(queue for queue, is_held in held.items() if is_held)
        free = [queue for queue in queues if self._may_take(queue, held.get(queue, True))]
        begun = await asyncio.gather(*(self._begin(queue) for queue in free))
        taken = [assigned for assigned in begun if assigned is not None]
        await self._unlock(self._locked.intersection(queues) - {assigned.queue for assigned in taken})
        return taken

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        await self._locks.unlock(queues)
        self._locked.difference_update(queues)

    def _may_take(self, queue: MessageQueue, is_held: bool) -> bool:
        """Whether we have the lock, or have waited long enough for who has."""
        now = self._clock.monotonic()
        if not is_held and now - self._refused.setdefault(queue, now) < PATIENCE_SECONDS:
            return False
        self._refused.pop(queue, None)
        return True

    async def _begin(self, queue: MessageQueue) -> AssignedQueue | None:
        if queue.topic not in self._subscriptions:
            return None  # unsubscribed meanwhile
        assigned = AssignedQueue(queue, self._subscriptions.tags(queue.topic))
        try:
            await self._positions.begin(assigned)
        except MQError as error:
            if queue not in self._troubled:
                self._troubled.add(queue)
                logger.warning("group %s: %s cannot be consumed yet: %s", self._group, queue, error)
            return None
        if self._config.auto_commit:
            assigned.committed = -1  # tell the broker even where we begin: tools look for the group in every queue
        self._troubled.discard(queue)
        return assigned

    async def _give(self, queues: Sequence[AssignedQueue]) -> None:
        """Hand out nothing more of these queues; wait a moment for the application, commit, unlock."""
        for assigned in queues:
            self._fetching.end(assigned)
            assigned.leave()
        await self._done_with(queues)
        if late := [assigned.queue for assigned in queues if not self._is_done(assigned)]:
            names = ", ".join(map(str, late))
            logger.info("group %s: what was not %s comes again to the next: %s", self._group, self._done, names)
        if self._config.auto_commit:
            try:
                await self._positions.commit_finished(queues)
            except MQError as error:
                logger.warning("group %s: offsets of queues given away are not committed: %s", self._group, error)
        await self._unlock([assigned.queue for assigned in queues])

    async def _done_with(self, queues: Sequence[AssignedQueue]) -> None:
        """Wait until the application has finished what it got, at most as long as the next owner waits."""
        deadline = self._clock.monotonic() + HAND_OVER_SECONDS
        while self._clock.monotonic() < deadline and not all(self._is_done(assigned) for assigned in queues):
            await self._clock.sleep(LOOK_SECONDS)

    @property
    def _done(self) -> str:
        return "consumed" if self._config.auto_commit else "committed"

    def _is_done(self, assigned: AssignedQueue) -> bool:
        done = assigned.finished if self._config.auto_commit else assigned.committed
        return done == assigned.position

    async def _settle(self) -> None:
        """Our queues are others now: pull the new ones, after the listeners, who may seek in them."""
        self._changed()
        for topic in self._subscriptions.topics:
            queues = sorted(queue for queue in self._assigned if queue.topic == topic)
            if queues != self._told[topic]:
                self._told[topic] = queues
                await self._tell(topic, self._subscriptions.listener(topic), queues)
        for assigned in self._assigned.values():
            self._fetching.begin_once(assigned)

    async def _tell(self, topic: str, listener: QueueListener | None, queues: list[MessageQueue]) -> None:
        if listener is None:
            return
        try:
            result = listener(list(queues))
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            if was_thrown_in(error):
                raise
            logger.warning(
                "group %s: the listener for our queues of topic %s failed", self._group, topic, exc_info=error
            )
