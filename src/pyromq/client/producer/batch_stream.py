"""Sends runs: encoded batches of messages for one queue, for programs that send very many messages.

Runs of one queue are sent one after another, so that a retry cannot change their order. Runs of different queues are
sent in parallel. A run is retried at its broker until it is acknowledged or its timeout has passed. The header of a run
decides what its messages are: visible to consumers immediately, or half messages of a batch transaction
(`batch_transactions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pyromq.client.arguments import checked
from pyromq.client.client_config import ProducerConfig
from pyromq.client.cluster.cluster_client import AsyncLifespan, ClusterClient
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.cluster.retry import Retry
from pyromq.client.producer.pending_send import STATUSES, check_topic_for_sending
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError, NoPermission, NotTheMaster, Unavailable, UsageError, from_response
from pyromq.message import MessageQueue, SendStatus
from pyromq.message_id import UniqueIds
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import SendBatchMessage, SendMessage, SendMessageResponse, SendMessageV2

LONGEST_ANSWER = 15.0  # longest wait for the reply to a run (an encoded batch) before it is sent again

MakeHeader = Callable[[MessageQueue, int], Header]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The acknowledged messages of a stream in one queue: number, first and last offset (None for half messages)."""

    messages: int
    first_offset: int | None = None
    last_offset: int | None = None

    def joined(self, later: Acknowledged) -> Acknowledged:
        first = later.first_offset if self.first_offset is None else self.first_offset
        return Acknowledged(self.messages + later.messages, first, later.last_offset)


class BatchStream:
    """Sends runs (encoded batches for one queue) and collects their acknowledgements.

    After a run has failed, every call raises that run's error; unacknowledged runs may be stored or not.
    """

    def __init__(
        self, cluster: ClusterClient, clock: Clock, *, make_header: MakeHeader, in_flight: int, timeout: float
    ) -> None:
        self.acknowledged: dict[MessageQueue, Acknowledged] = {}
        self._cluster = cluster
        self._clock = clock
        self._make_header = make_header
        self._timeout = timeout
        self._room = asyncio.Semaphore(in_flight)
        self._lanes: dict[MessageQueue, asyncio.Lock] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._failure: MQError | None = None
        self.count = 0  # number of runs (encoded batches) begun
        self._messages = 0

    async def put(self, queue: MessageQueue, body: bytes, messages: int, *, header: Header | None = None) -> None:
        """Begin to send a run (an encoded batch) of `messages` messages.

        Waits while `in_flight` runs are unacknowledged. `header` replaces the header that the stream makes. Raises the
        error of an earlier run.
        """
        self._cluster.check_running()
        await self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        header = header or self._make_header(queue, self.count)
        self.count += 1
        self._messages += messages
        work = self._deliver(queue, body, messages, header)
        task = self._cluster.tasks.start(work, name=f"run {self.count} to {queue}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self) -> dict[MessageQueue, Acknowledged]:
        """Wait until every batch is acknowledged.

        Return the acknowledged messages by queue. Raises the first failure.
        """
        while self._running:
            await asyncio.wait(self._running)
        if self._failure is not None:
            raise self._failure
        done = sum(each.messages for each in self.acknowledged.values())
        if done != self._messages:  # the client was closed meanwhile, or a task failed
            raise Unavailable(f"{self._messages - done} of {self._messages} messages were not acknowledged")
        return self.acknowledged

    async def abandon(self) -> None:
        """Stop sending. Batches not acknowledged yet may be stored or not."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _deliver(self, queue: MessageQueue, body: bytes, messages: int, header: Header) -> None:
        try:
            async with self._lanes.setdefault(queue, asyncio.Lock()):
                if self._failure is None:
                    self._note(queue, messages, await self._ask(queue, header, body))
        except MQError as error:
            self._failure = self._failure or error
        finally:
            self._room.release()

    def _note(self, queue: MessageQueue, messages: int, response: Response) -> None:
        first = None
        if "queueOffset" in response.fields:
            first = response.header(SendMessageResponse).queue_offset
        now = Acknowledged(messages, first, None if first is None else first + messages - 1)
        before = self.acknowledged.get(queue)
        self.acknowledged[queue] = now if before is None else before.joined(now)

    async def _ask(self, queue: MessageQueue, header: Header, body: bytes) -> Response:
        """Send a batch until it is stored with status OK. Raises a refusal, or `Unavailable` at the deadline."""
        retry = Retry(self._clock, self._timeout)
        while True:
            try:
                response = await self._ask_once(queue, header, body, min(retry.left, LONGEST_ANSWER))
                status = STATUSES.get(response.code)
                if status is SendStatus.OK:
                    return response
                if status is None:
                    refusal = from_response(response.code, response.remark)
                    if isinstance(refusal, NotTheMaster):
                        self._cluster.routes.redirect(queue.broker_name, refusal.master)
                    raise refusal
                raise Unavailable(f"stored, but {status.value}")
            except MQError as error:
                if not error.retriable:
                    raise
                if not await retry.pause():
                    raise Unavailable(f"{queue} acknowledged no message for {self._timeout:g} s: {error}") from error
                failure = error
            await self._cluster.find_master(queue.topic, failure)

    async def _ask_once(self, queue: MessageQueue, header: Header, body: bytes, seconds: float) -> Response:
        address = self._cluster.sending_address(await self._cluster.master(queue))
        return await self._cluster.ask(address, header, body, timeout=seconds)


class AsyncRunProducer(AsyncLifespan):
    """Sends runs (encoded batches for one queue), for programs with an event loop.

    `BatchTransactions.stream` is the blocking form. `timeout` is the limit of one run in seconds, retries included;
    `in_flight` limits the unacknowledged runs. Entering raises `NoNameServer` immediately if no name server can be
    reached.
    """

    @checked
    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        timeout: float = 60.0,
        in_flight: int = 8,
        config: ProducerConfig | None = None,
    ) -> None:
        self.group = group
        self.config = config or ProducerConfig()
        self.names = namespace_of(self.config.namespace, namesrv)
        self.wire_group = self.names.checked_group(group)
        self.timeout = timeout
        self._in_flight = in_flight
        self._clock = SystemClock()
        # This client sends no heartbeats, because brokers send it no requests.
        self.cluster = ClusterClient(
            namesrv,
            self._clock,
            names=self.names,
            connections=self.config.connections,
            vip_channel=self.config.vip_channel,
        )
        self.ids: UniqueIds

    async def start(self) -> None:
        await self.cluster.start()
        self.ids = UniqueIds(self.cluster.ip, self._clock)

    async def close(self) -> None:
        """Close the connections. Batches not acknowledged yet may be stored or not. Idempotent."""
        if self.cluster.running:
            await self.cluster.close()

    async def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """Return the queues of a topic that can be written now, in order of broker name and queue id.

        A known route may be 30 s old; `refresh` fetches it again. Raises `TopicNotFound`,
        `NoPermission` if no queue may be written, `Unavailable` if no master is registered.
        """
        check_topic_for_sending(topic)
        config = self.config
        if refresh:
            await self.cluster.refresh(topic)
        route = await self.cluster.route_for_sending(topic, config.template_topic, config.new_topic_queues)
        if not route.writable:
            if any(route.master(name) for name in route.addresses):
                raise NoPermission(f"topic {topic!r} has no queue that may be written: its permission forbids that")
            raise Unavailable(f"topic {topic!r} has no queue that can be written: no master is registered")
        return list(route.writable)

    def stream(self, make_header: MakeHeader | None = None) -> BatchStream:
        """Return a stream of runs (encoded batches). By default, consumers see messages as soon as they are stored."""
        return BatchStream(
            self.cluster,
            self._clock,
            make_header=make_header or self._batch_header,
            in_flight=self._in_flight,
            timeout=self.timeout,
        )

    def single_header(self, queue: MessageQueue, *, flag: int, properties: str) -> Header:
        """Return the header for a single message instead of a batch, as delayed messages cannot be in a batch."""
        return self._header(SendMessageV2, queue, flag, properties)

    def _batch_header(self, queue: MessageQueue, _: int) -> Header:
        return self._header(SendBatchMessage, queue, 0, "")

    def _header(self, kind: type[SendMessage], queue: MessageQueue, flag: int, properties: str) -> Header:
        header: Header = kind(
            producer_group=self.wire_group,
            topic=self.names.wrap(queue.topic),
            default_topic=self.config.template_topic,
            default_topic_queue_count=self.config.new_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_ms=self._clock.now_ms(),
            flag=flag,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=kind is SendBatchMessage,
            broker_name=queue.broker_name,
        )
        return header


async def find_ledger(cluster: ClusterClient, name: str | None) -> str:
    """Return the name of the ledger, the broker that decides on batch transactions: `name`, else the first by name.

    A broker that left the cluster counts, because its decisions still hold: another ledger could decide differently.
    Raises `UsageError` if `name` is not known, `Unavailable` if no broker is registered.
    """
    registered = sorted((await cluster.cluster_table()).brokers)  # also replica sets that have no master now
    if not registered:
        raise Unavailable("the name server knows no broker")
    if name in registered:
        return name
    known = sorted({*registered, *await cluster.absent_topics()})
    if name is not None and name not in known:
        raise UsageError(f"no broker {name!r} is registered to keep the ledger; there are {', '.join(registered)}")
    return name or known[0]
