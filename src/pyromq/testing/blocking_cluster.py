"""A cluster for tests that are plain functions. The cluster runs on an event loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Self, TypeVar

from pyromq.broker.broker import Broker
from pyromq.client.blocking.admin import Admin
from pyromq.client.blocking.blocking_client import refuse_running_loop
from pyromq.client.blocking.consumers import Consumer, PullConsumer, SimpleConsumer
from pyromq.client.blocking.producers import Producer
from pyromq.client.client_config import ConsumerConfig, ProducerConfig
from pyromq.errors import NotRunning, UsageError
from pyromq.testing.cluster import Cluster, Config, connected
from pyromq.testing.link import Link
from pyromq.testing.replica_set import ReplicaSet

T = TypeVar("T")


class BlockingCluster:
    """A cluster for tests without an event loop, a context manager; with the arguments of `Cluster`.

        with BlockingCluster() as cluster:
            producer = cluster.producer()
            producer.send(Message("orders", b"1"))

    The clients are blocking clients. `run` calls any other method of `Cluster` on the event loop of the servers:

        cluster.run(cluster.cluster.push_consumer("billing"))

    Called inside a running event loop, methods raise `UsageError`: use `Cluster` there.
    """

    def __init__(self, brokers: int = 1, **settings: Any) -> None:
        self.cluster = Cluster(brokers, **settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = ExitStack()

    @property
    def namesrv(self) -> str:
        """The address of the name server."""
        return self.cluster.namesrv

    @property
    def brokers(self) -> list[Broker]:
        return self.cluster.brokers

    @property
    def broker(self) -> Broker:
        """The first broker of the cluster."""
        return self.cluster.broker

    @property
    def sets(self) -> list[ReplicaSet]:
        """The replica sets, one for each broker; empty unless `replicas` was given."""
        return self.cluster.sets

    @property
    def links(self) -> list[Link]:
        """The links (TCP relays) between clients and brokers, one for each broker; empty unless `linked` was given."""
        return self.cluster.links

    @property
    def clock(self) -> Any:
        """The clock of the servers; `advance` moves this clock."""
        return self.cluster.clock

    def __enter__(self) -> Self:
        refuse_running_loop("`async with pyromq.testing.Cluster()`")
        with ExitStack() as stack:
            self._loop = stack.enter_context(_RunningLoop()).loop
            stack.callback(self._forget_loop)
            self.run(self.cluster.__aenter__())
            stack.callback(lambda: self.run(self.cluster.__aexit__(None, None, None)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        refuse_running_loop("`async with pyromq.testing.Cluster()`")
        self._stack.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the cluster, and return the result."""
        try:
            refuse_running_loop("`pyromq.testing.Cluster`")
            if self._loop is None:
                raise NotRunning("the cluster is not running: start it with `with`")
        except UsageError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def advance(self, seconds: float) -> None:
        """Advance the clock of the servers by so many seconds; sleeping tasks wake at their times."""
        self.run(self.clock.advance(seconds))

    def producer(self, group: str = "test-producer", **options: Any) -> Producer:
        """Return a started producer that is closed with the cluster."""
        return self._client(Producer, group, ProducerConfig(), **options)  # type: ignore[no-any-return]

    def consumer(self, group: str = "test-consumer", **options: Any) -> PullConsumer:
        """Return a started pull consumer that is closed with the cluster."""
        return self._client(PullConsumer, group, ConsumerConfig(), **options)  # type: ignore[no-any-return]

    def push_consumer(self, group: str = "test-consumer", **options: Any) -> Consumer:
        """Return a started push consumer that is closed with the cluster. The test must still call `subscribe`."""
        return self._client(Consumer, group, ConsumerConfig(), **options)  # type: ignore[no-any-return]

    def simple_consumer(self, group: str = "test-consumer", **options: Any) -> SimpleConsumer:
        """Return a started simple consumer that is closed with the cluster. The test must still call `subscribe`."""
        return self._client(SimpleConsumer, group, ConsumerConfig(), **options)  # type: ignore[no-any-return]

    def admin(self) -> Admin:
        """Return a started admin client that is closed with the cluster."""
        return self._stack.enter_context(Admin(self.namesrv, connections=self.cluster.connections))

    def _client(self, kind: Callable[..., Any], group: str, default: Config, **options: Any) -> Any:
        config = connected(options.pop("config", None) or default, self.cluster.connections)
        return self._stack.enter_context(kind(group, self.namesrv, config=config, **options))

    def stop_broker(self, number: int = 0, replica: int | None = None) -> None:
        """Stop a broker cleanly; its port and folder stay reserved for `start_broker`. See `Cluster.stop_broker`."""
        self.run(self.cluster.stop_broker(number, replica))

    def kill_broker(self, number: int = 0, replica: int | None = None) -> None:
        """End a broker as SIGKILL would end a process; see `Cluster.kill_broker`."""
        self.run(self.cluster.kill_broker(number, replica))

    def kill_master(self, number: int = 0) -> int:
        """Kill the master of a replica set, and return its number; see `Cluster.kill_master`."""
        return self.run(self.cluster.kill_master(number))

    def until_in_sync(self, number: int = 0) -> None:
        """Wait until a replica set has a master, and all of its running replicas are in sync."""
        self.run(self.cluster.until_in_sync(number))

    def start_broker(self, number: int = 0, replica: int | None = None) -> Broker:
        """Start a stopped or killed broker again, on the same port and folder. See `Cluster.start_broker`."""
        return self.run(self.cluster.start_broker(number, replica))

    def restart_broker(self, number: int = 0, replica: int | None = None) -> Broker:
        """Stop a broker cleanly and start it again. See `Cluster.restart_broker`."""
        return self.run(self.cluster.restart_broker(number, replica))

    def _forget_loop(self) -> None:
        self._loop = None


class _RunningLoop:
    """An event loop that runs in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="pyromq cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
