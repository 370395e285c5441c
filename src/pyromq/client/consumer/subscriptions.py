"""The subscriptions of a consumer, and their registration at every broker that has one of the topics.

This module handles no queues: the assignment of queues begins when `joined` is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.clock import Clock
from pyromq.errors import MQError, UsageError
from pyromq.filter.filter import EVERYTHING, TagFilter, Wanted
from pyromq.filter.sql import SqlFilter
from pyromq.logs import logger_of
from pyromq.names import retry_topic
from pyromq.remoting.bodies import ClientCheck, Subscription, encode_body
from pyromq.remoting.headers import CheckClient

logger = logger_of(__name__)

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class _Subscribed(Generic[L]):
    """The filter and the listener of a topic. `version` is the time of the subscription (ms since 1970)."""

    wanted: Wanted
    listener: L
    version: int


class Subscriptions(Generic[L]):
    """The topics of one consumer, each with its filter and its listener.

    With `retries`, the group's retry topic is one of the topics. `absent` is the listener of topics without a
    subscription. `joined()` is called each time brokers have registered a change.
    """

    def __init__(
        self,
        group: str,
        cluster: ClusterClient,
        clock: Clock,
        *,
        retries: bool,
        absent: L,
        joined: Callable[[], None],
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._clock = clock
        self._retries = retries
        self._absent = absent
        self._joined = joined
        self._subscribed: dict[str, _Subscribed[L]] = {}
        self._follows = False  # True after `_route_changed` was added to the route callbacks
        self._unchecked: set[str] = set()  # topics with an expression that no broker has checked yet

    @property
    def topics(self) -> list[str]:
        """The topics subscribed to, sorted; with `retries`, the group's retry topic is the last one."""
        topics = sorted(self._subscribed)
        return [*topics, retry_topic(self._group)] if topics and self._retries else topics

    def wanted(self, topic: str) -> Wanted:
        """Return the filter of a topic; for a topic without a subscription, a filter that accepts everything."""
        subscribed = self._subscribed.get(topic)
        return subscribed.wanted if subscribed is not None else EVERYTHING

    def listener(self, topic: str) -> L:
        """Return the listener of a topic; `absent` for a topic without a subscription."""
        subscribed = self._subscribed.get(topic)
        return subscribed.listener if subscribed is not None else self._absent

    def __contains__(self, topic: str) -> bool:
        return topic in self._subscribed

    def add(self, topic: str, wanted: Wanted, listener: L) -> None:
        """Subscribe to a topic, or replace its listener and filter.

        While the client runs, a task registers the change at the brokers.
        """
        self._subscribed[topic] = _Subscribed(wanted, listener, self._clock.now_ms())
        if isinstance(wanted, SqlFilter):
            self._unchecked.add(topic)
        self._announce_soon()

    def remove(self, topic: str) -> None:
        """Unsubscribe from a topic. Raises `UsageError` for a topic without a subscription."""
        if self._subscribed.pop(topic, None) is None:
            raise UsageError(f"topic {topic!r} is not subscribed to; subscribed topics: {sorted(self._subscribed)}")
        self._announce_soon()

    def announced(self) -> list[Subscription]:
        """Return the subscriptions as heartbeats contain them."""
        return [self._said(topic) for topic in self.topics]

    async def join(self) -> None:
        """Register as a member at every broker that has one of the topics, and later at brokers new in their routes.

        Raises a broker's error for a filter expression that the broker refuses.
        """
        await asyncio.gather(*(self._learn(topic) for topic in self.topics))
        for topic in self._unchecked & self._subscribed.keys():
            await self._check(topic)
        await self._cluster.heartbeat()
        if not self._follows:
            self._follows = True
            self._cluster.on_route_change.append(self._route_changed)

    async def announce(self) -> None:
        """Register the changed subscriptions at the brokers, then call `joined`."""
        await self.join()
        self._joined()

    def _said(self, topic: str) -> Subscription:
        return subscription(self._cluster.names.wrap(topic), self.wanted(topic), self._version(topic))

    def _version(self, topic: str) -> int:
        subscribed = self._subscribed.get(topic)
        return subscribed.version if subscribed is not None else 0

    def _announce_soon(self) -> None:
        if self._cluster.running:
            self._cluster.tasks.start(self.announce(), name=f"subscriptions of {self._group}")

    async def _learn(self, topic: str) -> None:
        try:
            await self._cluster.route(topic)
        except MQError as error:
            logger.debug("group %s: no route of %s yet: %s", self._group, topic, error)  # the rebalance logs a warning

    async def _check(self, topic: str) -> None:
        route = self._cluster.routes.find(topic)
        queues = route.readable if route is not None else ()
        for address in filter(None, (route.master(queue.broker_name) for queue in queues if route is not None)):
            body = encode_body(ClientCheck(self._cluster.client_id, self._group, self._said(topic)))
            (await self._cluster.ask(address, CheckClient(), body)).check()
            self._unchecked.discard(topic)
            return

    def _route_changed(self, topic: str) -> None:
        if topic in self.topics:
            self._announce_soon()  # the route may have a broker that does not know this member


def subscription(topic: str, wanted: Wanted, version: int = 0) -> Subscription:
    """Return one topic's subscription in the form in which heartbeats contain it."""
    tags = wanted if isinstance(wanted, TagFilter) else EVERYTHING
    return Subscription(
        topic=topic,
        expression=wanted.expression,
        expression_type=wanted.expression_type,
        tags=sorted(tags.tags),
        codes=sorted(tags.codes),
        version=version,
    )
