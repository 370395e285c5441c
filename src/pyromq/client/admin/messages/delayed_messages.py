"""Messages that wait for a time of their own: how many, which, and cancelling them for their producer.

Those in delay levels are not among them: they are in a queue of their own topic, and cannot be cancelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from pyromq.client.admin.cluster_tool import ClusterTool
from pyromq.client.arguments import checked
from pyromq.client.producer.recall import recall
from pyromq.errors import CodeNotSupported
from pyromq.remoting.bodies import TimerCounts, TimerEntry, TimerList, decode_body
from pyromq.remoting.command import Response
from pyromq.remoting.headers import CountTimers, ListTimers

PAGE = 500


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for `due_ms`; `sent_ms` is when its broker got it (ms), `size` the bytes of its body.

    `message_id` is the producer's unique id, `recall_handle` cancels it; both are None for messages without an id.
    """

    topic: str
    broker_name: str
    queue_id: int
    due_ms: int
    sent_ms: int
    size: int
    message_id: str | None
    recall_handle: str | None
    tags: str | None
    keys: list[str]


@checked
class AsyncDelayedMessages(ClusterTool):
    """Counts, lists and cancels what waits for its time, for programs with an event loop.

        async with AsyncDelayedMessages() as delayed_messages:
            async for message in delayed_messages.waiting("reminders"):
                print(message.due_ms, message.message_id)

    `namesrv`, `connections` and `instance` are as for `AsyncAdmin`; `timeout` is seconds a request. Entering raises
    `NoNameServer` at once when no name server can be reached. Brokers of RocketMQ 4 know no such messages, those of
    RocketMQ 5 only count them: they raise `CodeNotSupported`.
    """

    async def counts(self) -> dict[str, int]:
        """Return how many messages wait, by topic, in order of topic; topics without any are not in it."""
        total: Counter[str] = Counter()
        for name, address in (await self._cluster.masters()).items():
            response = await self._ask(name, address, CountTimers())
            for topic, each in decode_body(TimerCounts, response.body).counts.items():
                total[topic] += each.count
        return {topic: total[topic] for topic in sorted(total) if total[topic]}

    async def waiting(self, topic: str, *, begin_ms: int = 0) -> AsyncGenerator[DelayedMessage, None]:
        """Yield what waits in a topic and is due at `begin_ms` (ms since 1970) or later, in order of delivery.

        What is sent, delivered or cancelled meanwhile may be in it or not.
        """
        async with AsyncExitStack() as stack:
            sources = [
                await stack.enter_async_context(aclosing(self._waiting_at(name, address, topic, begin_ms)))
                for name, address in (await self._cluster.masters()).items()
            ]
            heads = [(await anext(source, None), source) for source in sources]
            while ahead := [(first.due_ms, number) for number, (first, _) in enumerate(heads) if first is not None]:
                first, source = heads[min(ahead)[1]]
                assert first is not None
                yield first
                heads[min(ahead)[1]] = (await anext(source, None), source)

    async def cancel(self, recall_handle: str) -> str:
        """Cancel a message and return its unique id, as `AsyncProducer.cancel` does."""
        return await recall(self._cluster, recall_handle, timeout=self._timeout)

    async def _waiting_at(
        self, name: str, address: str, topic: str, begin_ms: int
    ) -> AsyncGenerator[DelayedMessage, None]:
        place: int | None = begin_ms
        after = -1
        while place is not None:
            question = ListTimers(topic=topic, count=PAGE, begin_ms=place, after=after)
            page = decode_body(TimerList, (await self._ask(name, address, question)).body)
            for entry in page.timers:
                yield _delayed(name, entry)
            place, after = page.next_ms, page.next_after

    async def _ask(self, name: str, address: str, question: CountTimers | ListTimers) -> Response:
        response = await self._cluster.ask(address, question, timeout=self._timeout)
        try:
            return response.check()
        except CodeNotSupported as error:
            what = "list" if isinstance(question, ListTimers) else "count"
            raise CodeNotSupported(f"broker {name} at {address} does not {what} messages that wait") from error


def _delayed(broker_name: str, entry: TimerEntry) -> DelayedMessage:
    return DelayedMessage(
        entry.topic,
        broker_name,
        entry.queue_id,
        entry.due_ms,
        entry.sent_ms,
        entry.size,
        entry.message_id,
        entry.recall_handle,
        entry.tags,
        (entry.keys or "").split(),
    )
