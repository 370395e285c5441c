"""The queues that a pull consumer shares with its group by subscribing, and listeners for changed queues.

`Rebalance` assigns the queues, `Assignment` acquires and revokes them, `Positions` commits. A revoked queue is drained
when the application has asked for more messages; without `auto_commit`, when the application has committed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence

from pyromq.client.application_code import check_takes, was_thrown_in
from pyromq.client.client_config import ConsumerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.assignment import RENEW_SECONDS, Assignment, QueueLockClient
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue, Positions
from pyromq.client.consumer.pull.prefetch import Prefetch
from pyromq.client.consumer.rebalance import Rebalance
from pyromq.client.consumer.subscriptions import Subscriptions
from pyromq.clock import Clock
from pyromq.errors import MQError, UsageError
from pyromq.filter.filter import Wanted
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.tasks import every
from pyromq.remoting.bodies import Subscription

logger = logger_of(__name__)

QueueListener = Callable[[list[MessageQueue]], object]


class _Watched:
    """A watched topic: its listener, the queues of the listener's last call (`notified`), and whether a call runs."""

    def __init__(self, listener: QueueListener, notified: tuple[MessageQueue, ...]) -> None:
        self.listener = listener
        self.notified = notified
        self.busy = False


class QueueWatch:
    """Calls listeners when the readable queues of a topic change. A topic has one listener: the latest.

    Source: RocketMQ 4.9.8, DefaultLitePullConsumerImpl.registerTopicMessageQueueChangeListener.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._watched: dict[str, _Watched] = {}
        cluster.on_route_change.append(self._look)

    async def begin(self, topic: str, listener: QueueListener) -> list[MessageQueue]:
        """Return the topic's readable queues, and call the listener when they change. Raises `TopicNotFound`."""
        check_takes(listener, "queues", what="a listener for queues")
        await self._cluster.refresh(topic)
        queues = (await self._cluster.route(topic)).readable
        self._watched[topic] = _Watched(listener, queues)
        return list(queues)

    def end(self, topic: str) -> None:
        """Stop calling the topic's listener."""
        self._watched.pop(topic, None)

    def _look(self, topic: str) -> None:
        watched = self._watched.get(topic)
        if watched is not None and not watched.busy and self._queues(topic) != watched.notified:
            watched.busy = True
            self._cluster.tasks.start(self._tell(topic, watched), name=f"queues of {topic}")

    async def _tell(self, topic: str, watched: _Watched) -> None:
        """Call the listener, one call at a time, until it was called with the present queues."""
        while self._watched.get(topic) is watched and (queues := self._queues(topic)) != watched.notified:
            watched.notified = queues
            await _call(watched.listener, queues, "the listener for the queues of topic %s failed", topic)
        watched.busy = False

    def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        route = self._cluster.routes.find(topic)
        return route.readable if route is not None else ()


async def _call(listener: QueueListener, queues: Iterable[MessageQueue], failed: str, *names: str) -> None:
    """Call a listener, plain or `async`. Its exception is logged as the text `failed` with these names."""
    try:
        result = listener(list(queues))
        if inspect.isawaitable(result):
            await result
    except BaseException as error:
        if was_thrown_in(error):
            raise
        logger.warning(failed, *names, exc_info=error)


CHECK_SECONDS = 0.01  # interval of checks whether a revoked queue is drained, because iteration sets no event


class SubscribedQueues:
    """The subscriptions of one pull consumer, and the tasks that assign its queues; implements `assignment.QueueWork`.

    `changed()` is called when `assigned` has changed.
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
        fetching: Prefetch,
        changed: Callable[[], None],
    ) -> None:
        self.used = False  # True after the first subscription
        self._group = group
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._assigned = assigned
        self._positions = positions
        self._fetching = fetching
        self._changed = changed
        self._locks = QueueLockClient(group, cluster)
        self._queues = Assignment[AssignedQueue](group, clock, self, locks=self._locks, wake=self.wake)
        self._subscriptions = Subscriptions[QueueListener | None](
            group, cluster, clock, retries=False, absent=None, joined=self._joined
        )
        self._notified: dict[str, list[MessageQueue]] = {}  # queues of each topic at the latest call of its listener
        self._running = False
        self._rebalance = Rebalance(
            assigned,
            group,
            cluster,
            config,
            clock=clock,
            topics=lambda: self._subscriptions.topics,
            acquire=self._queues.acquire,
            revoke=self._queues.revoke,
            settle=self._settle,
        )

    def subscribe(self, topic: str, wanted: Wanted, listener: QueueListener | None) -> None:
        """Subscribe to a topic. The listener gets this member's queues of the topic when they change."""
        if self._config.broadcast:
            raise UsageError(
                "a pull consumer with broadcast cannot subscribe: assign() all queues, with a group for each reader"
            )
        if listener is not None:
            check_takes(listener, "queues", what="a listener for queues")
        self.used = True
        self._notified[topic] = []
        self._subscriptions.add(topic, wanted, listener)
        for assigned in self._assigned.values():
            if assigned.queue.topic == topic and assigned.wanted is not wanted and not assigned.leaving:
                assigned.wanted = wanted
                self._fetching.begin(assigned)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe; the topic's queues are revoked soon."""
        self._subscriptions.remove(topic)

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions as heartbeats contain them."""
        return self._subscriptions.announced()

    async def start(self) -> None:
        """Join the group if there is a subscription; queues are assigned soon after that."""
        if self._subscriptions.topics:
            await self._subscriptions.announce()

    async def leave(self) -> None:
        """Release the locks of all queues. The caller has stopped the client's tasks and committed."""
        self._running = False
        await self._queues.unlock_all()

    def wake(self) -> None:
        """Refresh routes and rebalance soon, because members or queues have changed."""
        self._rebalance.look_again()

    def _joined(self) -> None:
        """Rebalance after brokers have registered the subscriptions. The first call starts the tasks."""
        if self._running:
            self._rebalance.wake()
            return
        self._running = True
        self._cluster.on_connection_lost.append(self._connection_lost)
        self._cluster.routes.on_master_change.append(lambda broker_name, *_: self._connection_lost(broker_name))
        start = self._cluster.tasks.start
        start(self._rebalance.run(), name=f"rebalance {self._group}")
        start(every(RENEW_SECONDS, self._renew_locks, self._clock), name=f"locks of {self._group}")

    def _connection_lost(self, address: str) -> None:
        if self._queues.held:
            self._cluster.tasks.start(self._renew_locks(), name=f"lock again at {address}")

    async def _renew_locks(self) -> None:
        await self._locks.lock(self._queues.held)

    async def begin(self, queue: MessageQueue) -> AssignedQueue | None:
        """Begin at the group's offset; `_settle` starts pulling. Return None if the topic was unsubscribed."""
        if queue.topic not in self._subscriptions:
            return None  # the topic was unsubscribed meanwhile
        assigned = AssignedQueue(queue, self._subscriptions.wanted(queue.topic))
        await self._positions.begin(assigned)
        if self._config.auto_commit:
            # So that the first offset is committed, too: tools look for the group in every queue.
            assigned.committed = -1
        self._assigned[queue] = assigned  # now: a reset may arrive before the rebalance has acquired its other queues
        return assigned

    def stop(self, assigned: AssignedQueue) -> None:
        """Stop fetching, and hand out no further message."""
        self._fetching.end(assigned)
        assigned.leave()

    def is_busy(self, assigned: AssignedQueue) -> bool:
        """Return whether the application has unfinished messages of the queue."""
        done = assigned.finished if self._config.auto_commit else assigned.committed
        return done != assigned.position

    async def drain(self, assigned: AssignedQueue) -> None:
        """Wait until the application has no unfinished messages of the queue."""
        while self.is_busy(assigned):
            await self._clock.sleep(CHECK_SECONDS)

    def log_late(self, late: Sequence[AssignedQueue], seconds: float) -> None:
        names = ", ".join(str(assigned.queue) for assigned in late)
        done = "consumed" if self._config.auto_commit else "committed"
        logger.info("group %s: messages not %s are redelivered to the next owner: %s", self._group, done, names)

    async def save(self, queues: Sequence[AssignedQueue]) -> None:
        """Commit finished offsets with `auto_commit`; without it the application commits."""
        if self._config.auto_commit:
            try:
                await self._positions.commit_finished(queues)
            except MQError as error:
                logger.warning("group %s: offsets of revoked queues are not committed: %s", self._group, error)

    def release(self, assigned: AssignedQueue) -> bool:
        """Return True: results of a revoked queue need no lock."""
        return True

    async def _settle(self) -> None:
        """Call listeners whose queues have changed, so that they may seek. After that, pull the new queues."""
        self._changed()
        for topic in self._subscriptions.topics:
            queues = sorted(queue for queue in self._assigned if queue.topic == topic)
            if queues != self._notified[topic]:
                self._notified[topic] = queues
                if (listener := self._subscriptions.listener(topic)) is not None:
                    failed = "group %s: the listener for this member's queues of topic %s failed"
                    await _call(listener, queues, failed, self._group, topic)
        for assigned in self._assigned.values():
            self._fetching.begin_once(assigned)
