"""One box for every search: by id, by key, or by content; in one topic, or in all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from pyromq.client.admin.admin_client import each_of
from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.cluster.cluster_snapshot import ClusterSnapshot
from pyromq.console.search.query import Query
from pyromq.console.search.queue_scan import (
    MATCH_ALL,
    Match,
    Projection,
    QueueScan,
    ScanResult,
    bounds_between,
    narrowed,
)
from pyromq.errors import (
    MQError,
    NoPermission,
    QueryNotFound,
    TopicNotFound,
    Unavailable,
    UndecodableBody,
    UsageError,
)
from pyromq.filter.sql import SqlFilter, check_sql
from pyromq.message import MessageQueue, StoredMessage, encode_properties
from pyromq.names import HALF_TOPIC, NOT_FOR_CLIENTS, SCHEDULE_TOPIC, TRACE_TOPIC

Test = Callable[[StoredMessage], bool]

BODY = "body_"  # prefix of a JSON body's fields in expressions
MAX_FIELDS = 200  # limit of fields of one JSON body that expressions can use
MAX_PARSED = 1 << 20  # limit of a parsed JSON body: parsing 16 MiB would block other searches for a second
MAX_PATH = 1000  # limit of characters in the path of a field
SEPARATORS = re.compile("[\x01\x02]")

OF_AN_ID = re.compile(r"[0-9A-Fa-f]{32}([0-9A-Fa-f]{24})?\Z")
_LOG_OFFSET_BYTES = 8  # size of the log offset at the end of an offset message id

NO_MESSAGES = NOT_FOR_CLIENTS | {TRACE_TOPIC}  # trace records have the keys of the traced messages


T = TypeVar("T")


@dataclass(slots=True)
class SearchResult(Generic[T]):
    """The matches of a search, and where it searched. `way` is how: by `id`, by `key`, or by reading the `queues`.

    `failed` maps topics to errors of their brokers.
    """

    found: ScanResult[T]
    way: str
    topics: list[str]
    queues: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def is_by_index(self) -> bool:
        """Whether brokers found the matches in their index, without reading the queues."""
        return self.way != "scan"


class Search(Generic[T]):
    """Runs one query of the search form. `keeping` extracts the part of each match that is kept."""

    def __init__(self, clients: ClusterClients, query: Query, keeping: Projection[T], *, seconds: float) -> None:
        self._clients = clients
        self._query = query
        self._keeping = keeping
        self._seconds = seconds

    async def run(self) -> SearchResult[T]:
        """Run the query and return the result. Raises `UsageError`, `SubscriptionParseFailed` and errors of brokers."""
        query = self._query
        if query.by in ("any", "id") and OF_AN_ID.match(query.text):
            found = await self._by_id(query.text.upper())
            if found or query.by == "id":
                return SearchResult(await self._kept(found), "id", await self.topics())
        elif query.by == "id" and query.text:
            raise UsageError(
                f"{query.text[:80]!r} is not an id: an id has 32 or 56 hex digits; look for it as a string"
            )
        if query.by in ("any", "key") and query.text:
            result = await self._by_key(query.text)
            if result.found.kept or query.by == "key":
                return result
        return await self._scan()

    async def topics(self) -> list[str]:
        """Return the topics to search: the named one, or all of users, in ascending order of messages."""
        if self._query.topic:
            return [self._query.topic]
        snapshot = await self._clients.snapshot()
        full = [each for each in snapshot.topics.values() if each.messages and each.name not in NO_MESSAGES]
        return [each.name for each in sorted(full, key=lambda each: (each.kind != "normal", each.messages))]

    async def _kept(self, messages: list[StoredMessage]) -> ScanResult[T]:
        kept = await asyncio.to_thread(self._keeping.all, messages)
        return ScanResult(kept, why="enough" if len(kept) < len(messages) else "")

    async def _by_id(self, message_id: str) -> list[StoredMessage]:
        admin = await self._clients.admin()
        topics = await self.topics()

        async def look(topic: str) -> StoredMessage | None:
            try:
                found = await admin.query_by_key(topic, message_id, 1)
                return found[0] if found else None
            except MQError:
                return None  # another topic may have the message

        found = {}
        for message in await each_of(look, topics):
            if message is not None:
                found[message.offset_message_id] = message
        if not found:
            try:
                message = await admin.view(message_id)
            except MQError:
                return []
            found[message.offset_message_id] = await named(self._clients, message)
        return sorted(found.values(), key=lambda each: each.store_ms, reverse=True)

    async def _by_key(self, key: str) -> SearchResult[T]:
        admin, query = await self._clients.admin(), self._query
        failed: dict[str, str] = {}

        async def look(topic: str) -> list[StoredMessage]:
            try:
                return await admin.query_by_key(
                    topic, key, query.limit, begin_ms=query.since_ms or 0, end_ms=query.until_ms
                )
            except QueryNotFound:
                return []
            except (NoPermission, TopicNotFound) as error:
                if query.topic:
                    raise
                failed[topic] = str(error)
                return []
            except Unavailable as error:
                failed[topic] = str(error)
                return []

        topics = await self.topics()
        found = [message for messages in await each_of(look, topics) for message in messages]
        if not query.topic:
            found += await self._undelivered(key)
        if not found and not query.topic:  # the snapshot may be older than the message: look into topics new since then
            await self._clients.snapshot(fresh=True)
            new = [topic for topic in await self.topics() if topic not in topics]
            found = [message for messages in await each_of(look, new) for message in messages]
            topics += new
        found.sort(key=lambda each: each.store_ms, reverse=True)
        return SearchResult(await self._kept(found[: query.limit]), "key", topics, failed=failed)

    async def _undelivered(self, key: str) -> list[StoredMessage]:
        """Return the messages with a key that wait for their delay level, or are half messages, delivered since or not.

        These internal topics have no route, so brokers are found by other topics.
        """
        admin, query = await self._clients.admin(), self._query
        found: dict[str, StoredMessage] = {}
        for internal in (SCHEDULE_TOPIC, HALF_TOPIC):
            for topic in _topics_of_all_brokers(await self._clients.snapshot()):
                with suppress(MQError):  # a Java broker, or an account without the right to read internal topics
                    for each in await admin.query_by_key(
                        internal,
                        key,
                        query.limit,
                        begin_ms=query.since_ms or 0,
                        end_ms=query.until_ms,
                        at_brokers_of=topic,
                    ):
                        found[each.offset_message_id] = each
        return list(found.values())

    async def _scan(self) -> SearchResult[T]:
        query, reader = self._query, await self._clients.reader()
        match, tag, sql = wanted(query)
        failed: dict[str, str] = {}
        bounds = {}
        topics = await self.topics()

        async def look(topic: str) -> dict[MessageQueue, tuple[int, int]]:
            try:
                return await bounds_between(reader, [topic], query.since_ms, query.until_ms)
            except (NoPermission, TopicNotFound) as error:
                if query.topic:
                    raise
                failed[topic] = str(error)
                return {}

        for each in await each_of(look, topics):
            bounds.update(each)
        if query.queue:
            bounds = {
                queue: at for queue, at in bounds.items() if f"{queue.broker_name}:{queue.queue_id}" == query.queue
            }
        queues = len(bounds)
        bounds = narrowed(bounds, query.before)
        seconds, keeping = self._seconds, self._keeping
        scan = QueueScan(reader, bounds, match, keeping=keeping, limit=query.limit, seconds=seconds, tag=tag, sql=sql)
        found = await scan.run()
        return SearchResult(found, "scan", topics, queues, failed)


def _topics_of_all_brokers(snapshot: ClusterSnapshot) -> list[str]:
    """Return a few topics that together are at every broker."""
    found: list[str] = []
    covered: set[str] = set()
    for topic in sorted(snapshot.topics.values(), key=lambda each: -len(each.brokers)):
        if topic.kind != "system" and not covered.issuperset(topic.brokers):
            found.append(topic.name)
            covered.update(topic.brokers)
    return found


def wanted(query: Query) -> tuple[Match, str, str | None]:
    """Return the filters of a query: the match in the console, and tag and expression at the broker."""
    if query.by == "sql" and query.text:
        match = SqlMatch(query.text)
        return (match, "*", None) if match.of_body else (MATCH_ALL, "*", query.text)
    if query.by == "tag" and query.text:
        return MATCH_ALL, query.text, None
    return (TextMatch(query.text, match_case=query.match_case) if query.text else MATCH_ALL), "*", None


async def named(clients: ClusterClients, message: StoredMessage) -> StoredMessage:
    """Return a message found by its offset id, with the name of its broker."""
    if not message.broker_name:
        snapshot = await clients.snapshot()
        at = [name for name, each in snapshot.brokers.items() if each.address == message.store_host]
        message.broker_name = at[0] if at else ""
    return message


class TextMatch(Match):
    """Matches messages with a string in body, properties, keys, tag or id. Ignores case unless `match_case`."""

    def __init__(self, text: str, *, match_case: bool = False) -> None:
        self.ignores_case = not match_case
        self._text = text if match_case else text.lower()
        self._needle = self._text.encode()
        words = [(text if match_case else _caseless_part(self._text)).encode()]
        if OF_AN_ID.match(text):
            words += [text.upper().encode(), bytes.fromhex(text)[-_LOG_OFFSET_BYTES:]]
        if words[0]:
            self.words = tuple(words) if match_case else tuple(word.lower() for word in words)

    def accepts(self, message: StoredMessage) -> bool:
        try:
            body = message.body
        except UndecodableBody:
            body = message.stored_body
        return (
            self._is_in(body)
            or self._text in (message.property_text.lower() if self.ignores_case else message.property_text)
            or self._text.upper() in (message.message_id, message.offset_message_id)
        )

    def _is_in(self, body: bytes) -> bool:
        if not self.ignores_case:
            return self._needle in body
        if self._text.isascii():
            return self._needle in body.lower()
        return self._text in body.decode(errors="replace").lower()


def _caseless_part(text: str) -> str:
    """Return the longest part of a string in lower case of which no letter but ASCII has another case, "" without one.

    A record in which bytes of ASCII letters are lower case contains this part, if it contains the text.
    """
    parts = "".join(each if each.isascii() or each.lower() == each.upper() else "\0" for each in text).split("\0")
    return max(parts, key=len)


class SqlMatch(Match):
    """Matches messages by an SQL92 expression.

    A field of a JSON body is `body_name`, a nested field `body_item_sku`.
    """

    def __init__(self, expression: str) -> None:
        self.filter: SqlFilter = check_sql(expression)
        self.of_body = re.search(rf"\b{BODY}", expression) is not None

    def accepts(self, message: StoredMessage) -> bool:
        if not self.of_body:
            return self.filter.accepts_properties(message.property_text)
        return self.filter.accepts_properties(encode_properties({**message.properties, **body_fields(message)}))


def body_fields(message: StoredMessage) -> dict[str, str]:
    """Return the scalar values in a JSON body by path, for example `body_item_sku`. Other bodies have none."""
    try:
        body = message.body
        return _flat(msgspec.json.decode(body)) if len(body) <= MAX_PARSED else {}
    except (UndecodableBody, ValueError, RecursionError):  # not JSON, or too deeply nested
        return {}


def _flat(value: Any) -> dict[str, str]:
    """Return the scalar values in a JSON value, by the path of each."""
    found: dict[str, str] = {}
    left: list[tuple[str, Any]] = [(BODY[:-1], value)]
    while left and len(found) < MAX_FIELDS:
        path, each = left.pop()
        if len(path) > MAX_PATH:
            continue
        if isinstance(each, dict):
            left += [(f"{path}_{name}", inner) for name, inner in each.items()]
        elif isinstance(each, list):
            left += [(f"{path}_{number}", inner) for number, inner in enumerate(each[:20])]
        elif each is not None:
            text = str(each).lower() if isinstance(each, bool) else str(each)
            found[SEPARATORS.sub(" ", path)] = SEPARATORS.sub(" ", text)
    return found
