"""The blocking queue reader: the async one behind a `BlockingRunner`, with no behaviour of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyromq.client.blocking.blocking_runner import BlockingRunner
from pyromq.client.consumer.pulling import PullResult
from pyromq.client.consumer.queue_reader import AsyncQueueReader, Bounds
from pyromq.client.lifespan import Lifespan
from pyromq.message import MessageQueue
from pyromq.net.connection_config import ConnectionConfig


class QueueReader(Lifespan):
    """Reads queues in the name of a group; blocking, for programs without an event loop. See `AsyncQueueReader`.

    Several threads may use one.
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
        self._async = AsyncQueueReader(
            group,
            namesrv,
            timeout=timeout,
            verify_checksums=verify_checksums,
            connections=connections,
            namespace=namespace,
        )
        self._runner = BlockingRunner(self.close)

    def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        self._runner.start(self._async.start)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._runner.close(self._async.close)

    def topics(self) -> list[str]:
        """Return the names of all topics, reserved ones included, in order."""
        return self._runner.run(self._async.topics)

    def brokers(self) -> list[str]:
        """Return the names of all brokers that the name server knows now, in order."""
        return self._runner.run(self._async.brokers)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read now, in order. Raises `TopicNotFound`."""
        return self._runner.run(self._async.queues, topic)

    def deleted(self, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these topics, each with a broker's name, that the broker itself says it does not have."""
        return self._runner.run(self._async.deleted, places)

    def bounds(self, topics: Iterable[str]) -> dict[MessageQueue, Bounds]:
        """Return the bounds of every queue of these topics, in order. Raises `TopicNotFound`."""
        return self._runner.run(self._async.bounds, topics)

    def live_bounds(self, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, Bounds]:
        """Return these bounds with the first message of each queue that can be read: one short pull a queue."""
        return self._runner.run(self._async.live_bounds, bounds)

    def first_since(self, queue: MessageQueue, time_ms: int, bounds: Bounds) -> int:
        """Return the first offset stored at `time_ms` or later; the queue's end where there is none."""
        return self._runner.run(self._async.first_since, queue, time_ms, bounds)

    def store_time_at(self, queue: MessageQueue, offset: int) -> int | None:
        """Return the store time (ms) of the message at an offset; None where there is none."""
        return self._runner.run(self._async.store_time_at, queue, offset)

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Return `store_time_at` of several places, asked at once."""
        return self._runner.run(self._async.store_times, places)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        tags: str = "*",
        sql: str | None = None,
        max_bytes: int | None = None,
    ) -> PullResult:
        """Pull once; see `AsyncQueueReader.pull`."""
        return self._runner.run(self._async.pull, queue, offset, max_count, tags=tags, sql=sql, max_bytes=max_bytes)

    def pull_all(
        self,
        places: Sequence[tuple[MessageQueue, int, int]],
        *,
        tags: str = "*",
        sql: str | None = None,
        max_bytes: int | None = None,
    ) -> list[PullResult]:
        """Pull at once from several places: queue, offset, most messages."""
        return self._runner.run(self._async.pull_all, places, tags=tags, sql=sql, max_bytes=max_bytes)

    def committed(self, queues: Iterable[MessageQueue], group: str) -> dict[MessageQueue, int | None]:
        """Return where a group goes on in these queues; None where nothing is stored."""
        return self._runner.run(self._async.committed, queues, group)

    def commit(self, offsets: Mapping[MessageQueue, int], group: str) -> None:
        """Store where a group goes on; true at the brokers when this returns."""
        self._runner.run(self._async.commit, offsets, group)

    def announce_group(self, group: str) -> None:
        """See that the group's retry topic exists: RocketMQ's tools look for a group's brokers there."""
        self._runner.run(self._async.announce_group, group)
