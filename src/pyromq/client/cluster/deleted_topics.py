"""Forgets the routes of deleted topics, so that a client that lives long keeps nothing of short-lived topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set

from pyromq.client.cluster.topic_routes import Routes
from pyromq.errors import MQError
from pyromq.logs import logger_of

logger = logger_of(__name__)

REFRESHES = 3  # refreshes in a row that find a topic deleted before it is forgotten: it may be created again


class DeletedTopics:
    """The topics of a client's routes that were deleted.

    `brokers()` returns the names of all registered brokers. A route stays while one of its brokers is not registered:
    the broker may only have lost the name servers.
    """

    def __init__(self, routes: Routes, brokers: Callable[[], Awaitable[Set[str]]]) -> None:
        self.absent: set[str] = set()  # topics that no name server had at their latest refresh
        self.on_forgotten: list[Callable[[str], object]] = []  # called with a topic whose route was forgotten
        self._routes = routes
        self._brokers = brokers
        self._refreshes: dict[str, int] = {}  # topic -> refreshes in a row that found it deleted

    async def forget(self) -> None:
        """Forget the routes of topics that are deleted for some refreshes. Called after each refresh of all routes."""
        absent = {topic: route for topic in self.absent if (route := self._routes.find(topic)) is not None}
        self.absent.clear()
        try:
            brokers = await self._brokers() if absent else set()
        except MQError:
            brokers = set()
        deleted = [topic for topic, route in absent.items() if route.addresses.keys() <= brokers]
        self._refreshes = {topic: self._refreshes.get(topic, 0) + 1 for topic in deleted}
        for topic in [topic for topic, refreshes in self._refreshes.items() if refreshes >= REFRESHES]:
            logger.debug("route of %s is forgotten: the topic was deleted", topic)
            del self._refreshes[topic]
            self._routes.forget(topic)
            for tell in self.on_forgotten:
                tell(topic)
        self._routes.forget_unknown()
