"""Lists and reads undecided half messages, and decides on them in place of their producer.

A broker asks the group's producers for a decision at most 15 times. If no producer decides, an administrator can. The
decision is final: a later decision of a producer is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pyromq.client.admin.admin_client import AdminClient
from pyromq.client.admin.messages.message_search import find_by_offset_id, one_id
from pyromq.client.arguments import checked
from pyromq.client.client_hooks import Decision
from pyromq.errors import CodeNotSupported, QueryNotFound, Unavailable, UsageError
from pyromq.message import StoredMessage
from pyromq.message_id import is_offset_id
from pyromq.remoting.bodies import HalfMessageEntry, HalfMessageList, decode_body
from pyromq.remoting.headers import EndTransaction, ListHalfMessages

PAGE = 200  # half messages listed per request


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """An undecided half message of `producer_group` for `topic` and `queue_id` (both None if it is damaged).

    `born_ms` is its send time (ms since 1970), `checks` the number of checks so far, `size` the bytes of the stored
    body. `message_id` is the producer's unique id. Each check writes a new copy of the half message: the offsets and
    the offset id are those of the latest copy.
    """

    broker_name: str
    broker_address: str
    half_queue_offset: int
    log_offset: int
    offset_message_id: str
    message_id: str
    producer_group: str
    topic: str | None
    queue_id: int | None
    born_ms: int
    checks: int
    size: int
    tags: str | None
    keys: list[str]


@checked
class AsyncHalfMessages(AdminClient):
    """Lists undecided half messages and decides on them, for programs with an event loop.

        async with AsyncHalfMessages() as half_messages:
            async for half in half_messages.undecided("orders-service"):
                await half_messages.decide(half, Decision.ROLLBACK)

    `namesrv`, `connections` and `instance` are as for `AsyncAdmin`; `timeout` is seconds per request. Entering raises
    `NoNameServer` immediately if no name server can be reached. Java's brokers cannot list half messages: methods raise
    `CodeNotSupported` with them.
    """

    async def undecided(self, group: str | None = None, topic: str | None = None) -> AsyncGenerator[HalfMessage, None]:
        """Yield the undecided half messages of a producer group, a topic, or all, oldest first at each broker.

        A half message that is checked during the iteration may be yielded twice. Brokers out of reach are left out and
        logged. Raises `Unavailable` if no broker can be reached.
        """
        names = {address: name for name, address in (await self._cluster.masters()).items()}
        first = ListHalfMessages(count=PAGE, after=-1, producer_group=group)
        pages = await self._cluster.ask_reachable(names, lambda address: self._page(names[address], address, first))
        for address, begin in pages.items():
            page = begin
            while True:
                for entry in page.half_messages:
                    if topic in (None, entry.topic):
                        yield _half(names[address], address, entry)
                if page.next_after is None:
                    break
                question = ListHalfMessages(count=PAGE, after=page.next_after, producer_group=group)
                page = await self._page(names[address], address, question)

    async def find(self, message_id: str) -> HalfMessage:
        """Return the undecided half message with this unique id, or with the offset id of any of its copies.

        Raises `QueryNotFound`, and `UsageError` if a producer's retry stored two half messages with one unique id.
        """
        message_id = one_id(message_id)
        found = await self._undecided_with(message_id)
        if not found and is_offset_id(message_id) and (older := await self._older_copy(message_id)) is not None:
            found = await self._undecided_with(older.message_id)
        if not found:
            raise QueryNotFound(
                f"no undecided half message has id {message_id}: it was decided or given up, or the id is unknown"
            )
        if len(found) > 1:
            ids = ", ".join(sorted(half.offset_message_id for half in found.values()))
            raise UsageError(f"{len(found)} half messages have id {message_id}; name one by its offset id: {ids}")
        return next(iter(found.values()))

    async def _undecided_with(self, message_id: str) -> dict[tuple[str, str, int], HalfMessage]:
        found: dict[tuple[str, str, int], HalfMessage] = {}  # its keys are equal for all copies of one half message
        async with aclosing(self.undecided()) as undecided:
            async for half in undecided:
                if message_id.upper() in (half.message_id.upper(), half.offset_message_id):
                    found[half.broker_name, half.message_id, half.born_ms] = half
        return found

    async def _older_copy(self, offset_id: str) -> StoredMessage | None:
        """Return the message with an offset id, an earlier copy replaced by a check; None if it is not found."""
        try:
            return await find_by_offset_id(self._cluster, offset_id, timeout=self._timeout)
        except (QueryNotFound, Unavailable):
            return None

    async def content(self, half: HalfMessage) -> StoredMessage:
        """Return the half message as stored, with its body and with the half topic as its topic."""
        message = await find_by_offset_id(self._cluster, half.offset_message_id, timeout=self._timeout)
        message.broker_name = half.broker_name
        return message

    async def decide(self, half: HalfMessage, decision: Decision) -> None:
        """Commit or roll back a half message, as its producer would.

        Raises a `BrokerError` if the half message is decided already, `UsageError` for `UNKNOWN`.
        """
        if decision is Decision.UNKNOWN:
            raise UsageError("decision UNKNOWN has no effect; use COMMIT or ROLLBACK")
        order = EndTransaction(
            producer_group=half.producer_group,
            half_queue_offset=half.half_queue_offset,
            log_offset=half.log_offset,
            decision=decision.value,
            message_id=half.message_id,
            transaction_id=half.message_id,
            broker_name=half.broker_name,
        )
        (await self._cluster.ask(half.broker_address, order, timeout=self._timeout)).check()

    async def _page(self, name: str, address: str, question: ListHalfMessages) -> HalfMessageList:
        response = await self._cluster.ask(address, question, timeout=self._timeout)
        try:
            return decode_body(HalfMessageList, response.check().body)
        except CodeNotSupported as error:
            raise CodeNotSupported(
                f"broker {name} at {address} does not list half messages; only brokers of pyromq do"
            ) from error


def _half(broker_name: str, address: str, entry: HalfMessageEntry) -> HalfMessage:
    return HalfMessage(
        broker_name,
        address,
        entry.half_queue_offset,
        entry.log_offset,
        entry.offset_message_id,
        entry.message_id or entry.offset_message_id,
        entry.producer_group,
        entry.topic,
        entry.queue_id,
        entry.born_ms,
        entry.checks,
        entry.size,
        entry.tags,
        (entry.keys or "").split(),
    )
