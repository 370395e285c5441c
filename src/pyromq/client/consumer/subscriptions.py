"""What a consumer subscribes to, and that every broker which has one of the topics hears of it.

Knows no queues: sharing them begins where this calls `joined`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.clock import Clock
from pyromq.errors import MQError, UsageError
from pyromq.filter.tags import parse_tags
from pyromq.names import retry_topic
from pyromq.remoting.bodies import Subscription

logger = logging.getLogger(__name__)

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class _Subscribed(Generic[L]):
    """What the application wants of a topic. `version` is the wall clock's ms when it said so."""

    tags: str
    listener: L
    version: int


class Subscriptions(Generic[L]):
    """The topics of one consumer, each with its tags and what listens to it.

    With `retries` the group's retry topic is one of them. `joined` is called each time brokers have heard of a change.
    """

    def __init__(
        self, group: str, cluster: ClusterClient, clock: Clock, *, retries: bool, joined: Callable[[], None]
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._clock = clock
        self._retries = retries
        self._joined = joined
        self._subscribed: dict[str, _Subscribed[L]] = {}
        self._follows = False  # hears of changed routes

    @property
    def topics(self) -> list[str]:
        """The topics subscribed to, in order, and then the retry topic."""
        topics = sorted(self._subscribed)
        return [*topics, retry_topic(self._group)] if topics and self._retries else topics

    def tags(self, topic: str) -> str:
        """Return the tags wanted of a topic: all, where the application did not speak of it."""
        subscribed = self._subscribed.get(topic)
        return subscribed.tags if subscribed is not None else "*"

    def listener(self, topic: str) -> L | None:
        """Return who listens to a topic; None where nobody subscribes to it any more."""
        subscribed = self._subscribed.get(topic)
        return subscribed.listener if subscribed is not None else None

    def __contains__(self, topic: str) -> bool:
        return topic in self._subscribed

    def add(self, topic: str, tags: str, listener: L) -> None:
        """Subscribe to a topic, or with another listener or other tags. While the client runs, brokers hear it soon."""
        self._subscribed[topic] = _Subscribed(tags, listener, self._clock.now_ms())
        self._announce_soon()

    def remove(self, topic: str) -> None:
        """Raises `UsageError` for a topic that is not subscribed to."""
        if self._subscribed.pop(topic, None) is None:
            raise UsageError(f"topic {topic!r} is not subscribed to; these are: {sorted(self._subscribed)}")
        self._announce_soon()

    def announced(self) -> list[Subscription]:
        """What heartbeats say."""
        return [subscription(topic, self.tags(topic), self._version(topic)) for topic in self.topics]

    async def join(self) -> None:
        """Be known as a member at every broker that has one of the topics, from now on also at those that come."""
        await asyncio.gather(*(self._learn(topic) for topic in self.topics))
        await self._cluster.heartbeat()
        if not self._follows:
            self._follows = True
            self._cluster.on_route_change.append(self._route_changed)

    async def announce(self) -> None:
        """Join with what has changed, and tell so."""
        await self.join()
        self._joined()

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
            logger.debug("group %s: no route of %s yet: %s", self._group, topic, error)  # rebalance says so

    def _route_changed(self, topic: str) -> None:
        if topic in self.topics:
            self._announce_soon()  # there may be a broker that has not heard of us


def subscription(topic: str, expression: str, version: int = 0) -> Subscription:
    """Return what a heartbeat says of one topic, for the tags of `expression`."""
    tags = parse_tags(expression)
    return Subscription(
        topic=topic, expression=tags.expression, tags=sorted(tags.tags), codes=sorted(tags.codes), version=version
    )
