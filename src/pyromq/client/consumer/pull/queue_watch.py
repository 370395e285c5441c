"""Tells listeners when the queues of a topic become more or fewer: for applications that assign queues themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from pyromq.client.application_code import check_takes, was_thrown_in
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.logs import logger_of
from pyromq.message import MessageQueue

logger = logger_of(__name__)

QueueListener = Callable[[list[MessageQueue]], object]


class _Watched:
    """One topic: the queues its listener was told last, and whether it is at work now."""

    def __init__(self, listener: QueueListener, told: tuple[MessageQueue, ...]) -> None:
        self.listener = listener
        self.told = told
        self.busy = False


class QueueWatch:
    """Looks at every route the client learns. A topic has one listener: the latest.

    Source: RocketMQ 4.9.8, DefaultLitePullConsumerImpl.registerTopicMessageQueueChangeListener.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._watched: dict[str, _Watched] = {}
        cluster.on_route_change.append(self._look)

    async def begin(self, topic: str, listener: QueueListener) -> list[MessageQueue]:
        """Return the topic's readable queues and tell the listener when they are others. Raises `TopicNotFound`."""
        check_takes(listener, "queues", what="a listener for queues")
        await self._cluster.refresh(topic)
        queues = (await self._cluster.route(topic)).readable
        self._watched[topic] = _Watched(listener, queues)
        return list(queues)

    def end(self, topic: str) -> None:
        """Tell nobody any more about this topic."""
        self._watched.pop(topic, None)

    def _look(self, topic: str) -> None:
        watched = self._watched.get(topic)
        if watched is not None and not watched.busy and self._queues(topic) != watched.told:
            watched.busy = True
            self._cluster.tasks.start(self._tell(topic, watched), name=f"queues of {topic}")

    async def _tell(self, topic: str, watched: _Watched) -> None:
        """Call the listener until it knows the present queues; never twice at once."""
        while self._watched.get(topic) is watched and (queues := self._queues(topic)) != watched.told:
            watched.told = queues
            try:
                result = watched.listener(list(queues))
                if inspect.isawaitable(result):
                    await result
            except BaseException as error:
                if was_thrown_in(error):
                    raise
                logger.warning("the listener for the queues of topic %s failed", topic, exc_info=error)
        watched.busy = False

    def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        route = self._cluster.routes.find(topic)
        return route.readable if route is not None else ()
