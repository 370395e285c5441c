"""The blocking queue reader."""

from __future__ import annotations

from pyromq.client.blocking.blocking_client import BlockingClient, blocking
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.net.connection_config import ConnectionConfig


class QueueReader(BlockingClient[AsyncQueueReader]):
    """Reads queues in the name of a group; blocking, for programs without an event loop. Threads may share one.

    Arguments, units and errors are those of `AsyncQueueReader`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        verify_checksums: bool = True,
        connections: ConnectionConfig | None = None,
        namespace: str | None = None,
    ) -> None:
        client = AsyncQueueReader(
            group,
            namesrv,
            timeout=timeout,
            verify_checksums=verify_checksums,
            connections=connections,
            namespace=namespace,
        )
        super().__init__(client)

    topics = blocking(AsyncQueueReader.topics)
    brokers = blocking(AsyncQueueReader.brokers)
    absent = blocking(AsyncQueueReader.absent)
    queues = blocking(AsyncQueueReader.queues)
    deleted = blocking(AsyncQueueReader.deleted)
    bounds = blocking(AsyncQueueReader.bounds)
    live_bounds = blocking(AsyncQueueReader.live_bounds)
    first_since = blocking(AsyncQueueReader.first_since)
    store_time_at = blocking(AsyncQueueReader.store_time_at)
    store_times = blocking(AsyncQueueReader.store_times)
    pull = blocking(AsyncQueueReader.pull)
    pull_all = blocking(AsyncQueueReader.pull_all)
    committed = blocking(AsyncQueueReader.committed)
    commit = blocking(AsyncQueueReader.commit)
    announce_group = blocking(AsyncQueueReader.announce_group)
