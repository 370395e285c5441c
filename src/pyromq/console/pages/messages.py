"""Finding messages, following a topic as messages come, exporting what was found, searches with a name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import quote

from msgspec.structs import replace as replace_fields
from starlette.responses import Response, StreamingResponse

from pyromq.client.consumer.pulling import PullResult
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.console.search.bodies import BodyExcerpt
from pyromq.console.search.exports import MOST_EXPORTED, csv_head, csv_line, json_line
from pyromq.console.search.query import LIMITS, WAYS, Query
from pyromq.console.search.scanning import Keeping, Match
from pyromq.console.search.search import Result, Search, wanted
from pyromq.console.security.accounts import Role
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import change, view
from pyromq.errors import MQError, SubscriptionParseFailed, UsageError
from pyromq.message import MessageQueue, StoredMessage

TAIL_SECONDS = 0.5  # between two looks
MOST_TAILED = 100  # messages of one look: more scroll by unread
MOST_TAILS = 20  # that follow at once
ROW_BYTES = 2000  # of a row, beside the text of its properties
FIELDS = ("topic", "q", "by", "since", "until", "queue", "limit")

_tails = asyncio.Semaphore(MOST_TAILS)


async def messages(visit: RequestContext) -> Response:
    clients = await visit.clients()
    snapshot = await clients.snapshot()
    kept = {name: value for name in FIELDS if (value := visit.query.get(name, ""))}
    query, result, error = Query(), None, None  # type: Query, Result[Row] | None, MQError | None
    try:
        query = Query.of(visit.query)
        if query.topic or query.text:
            with visit.console.metrics.searching():
                result = await Search(clients, query, ROWS, seconds=visit.console.config.search_seconds).run()
    except (UsageError, SubscriptionParseFailed) as wrong:  # of what was typed: it is shown beside the form
        error = wrong
    return visit.show(
        "messages.html",
        status=400 if error else 200,
        snapshot=snapshot,
        query=query,
        kept=kept,
        result=result,
        error=error,
        rows=result.found.kept if result is not None else [],
        ways=WAYS,
        limits=LIMITS,
        topic_names=sorted(each.name for each in snapshot.topics.values() if each.kind != "system"),
        saved=visit.console.saved.of(visit.name),
        next_link=_older(kept, result),
    )


class Row:
    """A message in a list: its head, and the beginning of its body."""

    def __init__(self, message: StoredMessage) -> None:
        self.body = BodyExcerpt(message)
        self.message = replace_fields(message, stored_body=b"")
        self.link = address(
            "message", message.topic, message.broker_name, str(message.queue_id), str(message.queue_offset)
        )

    @property
    def size(self) -> int:
        """How many bytes are kept, about."""
        return ROW_BYTES + 2 * len(self.message.property_text)


ROWS = Keeping(Row, lambda row: row.size)


async def export(visit: RequestContext) -> Response:
    """Everything that a search finds, up to a bound, as a file."""
    form = visit.query.get("format", "jsonl")
    if form not in ("jsonl", "csv"):
        raise UsageError(f"format={form[:20]!r}: there is jsonl and csv")
    query = replace(Query.of(visit.query), limit=MOST_EXPORTED)
    if not query.topic and not query.text:
        raise UsageError("name a topic, or what to look for")
    lines = Keeping(json_line if form == "jsonl" else csv_line, len)
    seconds = 10 * visit.console.config.search_seconds
    with visit.console.metrics.searching():
        result = await Search(await visit.clients(), query, lines, seconds=seconds).run()
    found = result.found
    kind = "application/x-ndjson" if form == "jsonl" else "text/csv; charset=utf-8"
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(query.topic or 'messages', safe='')}.{form}"
    }
    if found.before or found.why:
        headers["x-incomplete"] = f"after {len(found.kept)} messages: {found.why}"
    head = [] if form == "jsonl" else [csv_head()]
    return Response(b"".join(head + found.kept), media_type=kind, headers=headers)


async def tail(visit: RequestContext) -> Response:
    """New messages of a topic as they come: server-sent events, each a row of the table."""
    query = Query.of(visit.query)
    if not query.topic:
        raise UsageError("name the topic to follow")
    reader = await (await visit.clients()).reader()
    ends = {queue: most for queue, (_, most) in (await reader.bounds([query.topic])).items()}
    if _tails.locked():
        raise UsageError(f"{MOST_TAILS} browsers follow topics already; close one first")
    return StreamingResponse(_events(visit, reader, query, ends), media_type="text/event-stream")


async def _events(
    visit: RequestContext, reader: AsyncQueueReader, query: Query, ends: dict[MessageQueue, int]
) -> AsyncIterator[bytes]:
    match, tag, sql = wanted(query)
    template = visit.console.templates.get_template("message_row.html")
    async with _tails:
        yield b"retry: 2000\n\n"
        while visit.console.sessions.find(visit.session.key) is not None:
            try:
                bounds = await reader.bounds([query.topic])
            except MQError as error:
                yield _event("trouble", {"text": str(error)})
                await asyncio.sleep(4 * TAIL_SECONDS)
                continue
            found: list[Row] = []
            try:
                for queue, (_, most) in bounds.items():
                    at = ends.setdefault(queue, 0)
                    if at < most:
                        skipped = max(at, most - MOST_TAILED)
                        result = await reader.pull(queue, skipped, MOST_TAILED, tags=tag, sql=sql)
                        found += await asyncio.to_thread(_rows, result, match)
                        ends[queue] = max(result.next_offset, at)
            except MQError as error:
                yield _event("trouble", {"text": str(error)})
            found.sort(key=lambda each: each.message.store_ms)
            if found:
                html = [template.render(row=each, with_topic=False) for each in found[-MOST_TAILED:]]
                yield _event("rows", {"rows": html, "more": max(0, len(found) - MOST_TAILED)})
            else:
                yield b": still here\n\n"  # who has gone is noticed by writing to them
            await asyncio.sleep(TAIL_SECONDS)


def _rows(result: PullResult, match: Match) -> list[Row]:
    return [Row(each) for each in result.messages if match.accepts(each)]


def _event(kind: str, data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _older(kept: dict[str, str], result: Result[Row] | None) -> str:
    if result is None or not result.found.before:
        return ""
    return address("messages", **kept, before=result.found.before)


async def find(visit: RequestContext) -> Response:
    """The box above every page: a topic's or a group's name leads there, anything else is looked for in messages."""
    text = visit.query.get("q", "").strip()
    snapshot = await (await visit.clients()).snapshot()
    if text in snapshot.topics:
        return visit.go(address("topics", text))
    if text in snapshot.groups:
        return visit.go(address("groups", text))
    return visit.go(address("messages", q=text))


async def save(visit: RequestContext) -> Response:
    name, query = visit.form.get("name", ""), visit.form.get("query", "")
    visit.console.saved.save(visit.name, name, query)
    return visit.done(f"Search {name.strip()} is saved.", visit.back("/messages"))


async def forget(visit: RequestContext) -> Response:
    name = visit.form.get("name", "")
    visit.console.saved.delete(visit.name, name)
    return visit.done(f"Search {name} is deleted.", visit.back("/messages"))


ROUTES = [
    view("/find", find),
    view("/messages", messages),
    view("/messages/export", export),
    view("/messages/tail", tail),
    change("/messages/save", save, needs=Role.VIEWER, what="save search"),
    change("/messages/forget", forget, needs=Role.VIEWER, what="delete search"),
]
