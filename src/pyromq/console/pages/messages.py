"""Finding messages, following a topic as messages come, exporting what was found, searches with a name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.responses import Response, StreamingResponse

from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.console.search.bodies import BodyView
from pyromq.console.search.exports import MOST_EXPORTED, csv_lines, json_lines
from pyromq.console.search.query import LIMITS, WAYS, Query
from pyromq.console.search.search import Result, Search, wanted
from pyromq.console.security.accounts import Role
from pyromq.console.view.routing import change, view
from pyromq.console.view.visit import Visit, address
from pyromq.errors import MQError, SubscriptionParseFailed, UsageError
from pyromq.message import MessageQueue, StoredMessage

TAIL_SECONDS = 0.5  # between two looks
MOST_TAILED = 100  # messages of one look: more scroll by unread
MOST_TAILS = 20  # that follow at once
FIELDS = ("topic", "q", "by", "since", "until", "queue", "limit")

_tails = asyncio.Semaphore(MOST_TAILS)


async def messages(visit: Visit) -> Response:
    clients = await visit.clients()
    snapshot = await clients.snapshot()
    kept = {name: value for name in FIELDS if (value := visit.query.get(name, ""))}
    query, result, error = Query(), None, None
    try:
        query = Query.of(visit.query)
        if query.topic or query.text:
            with visit.console.metrics.searching():
                result = await Search(clients, query, seconds=visit.console.config.search_seconds).run()
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
        rows=[Row(each) for each in result.messages] if result is not None else [],
        ways=WAYS,
        limits=LIMITS,
        topic_names=sorted(each.name for each in snapshot.topics.values() if each.kind != "system"),
        saved=visit.console.saved.of(visit.name),
        next_link=_older(kept, result),
    )


class Row:
    """A message in a list."""

    def __init__(self, message: StoredMessage) -> None:
        self.message = message
        self.body = BodyView(message)
        self.link = address(
            "message", message.topic, message.broker_name, str(message.queue_id), str(message.queue_offset)
        )


async def export(visit: Visit) -> Response:
    """Everything that a search finds, up to a bound, as a file."""
    form = visit.query.get("format", "jsonl")
    if form not in ("jsonl", "csv"):
        raise UsageError(f"format={form[:20]!r}: there is jsonl and csv")
    query = replace(Query.of(visit.query), limit=MOST_EXPORTED)
    if not query.topic and not query.text:
        raise UsageError("name a topic, or what to look for")
    with visit.console.metrics.searching():
        result = await Search(await visit.clients(), query, seconds=10 * visit.console.config.search_seconds).run()
    lines = b"".join((json_lines if form == "jsonl" else csv_lines)(result.messages))
    name = f"{query.topic or 'messages'}.{form}".replace("%", "").replace("|", "")
    kind = "application/x-ndjson" if form == "jsonl" else "text/csv; charset=utf-8"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    if result.found.before:
        headers["x-incomplete"] = f"after {len(result.messages)} messages: {result.found.why}"
    return Response(lines, media_type=kind, headers=headers)


async def tail(visit: Visit) -> Response:
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
    visit: Visit, reader: AsyncQueueReader, query: Query, ends: dict[MessageQueue, int]
) -> AsyncIterator[bytes]:
    match, tag, sql = wanted(query)
    row = visit.console.templates.get_template("message_row.html")
    async with _tails:
        yield b"retry: 2000\n\n"
        while visit.console.sessions.find(visit.session.key) is not None:
            try:
                bounds = await reader.bounds([query.topic])
            except MQError as error:
                yield _event("trouble", {"text": str(error)})
                await asyncio.sleep(4 * TAIL_SECONDS)
                continue
            found: list[StoredMessage] = []
            for queue, (_, most) in bounds.items():
                at = ends.setdefault(queue, 0)
                if at < most:
                    skipped = max(at, most - MOST_TAILED)
                    result = await reader.pull(queue, skipped, MOST_TAILED, tags=tag, sql=sql)
                    found += [each for each in result.messages if match.accepts(each)]
                    ends[queue] = max(result.next_offset, at)
            found.sort(key=lambda each: each.store_ms)
            if found:
                html = [row.render(row=Row(each), with_topic=False) for each in found[-MOST_TAILED:]]
                yield _event("rows", {"rows": html, "more": max(0, len(found) - MOST_TAILED)})
            else:
                yield b": still here\n\n"  # who has gone is noticed by writing to them
            await asyncio.sleep(TAIL_SECONDS)


def _event(kind: str, data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _older(kept: dict[str, str], result: Result | None) -> str:
    if result is None or not result.found.before:
        return ""
    return address("messages", **kept, before=result.found.before)


async def find(visit: Visit) -> Response:
    """The box above every page: a topic's or a group's name leads there, anything else is looked for in messages."""
    text = visit.query.get("q", "").strip()
    snapshot = await (await visit.clients()).snapshot()
    if text in snapshot.topics:
        return visit.go(address("topics", text))
    if text in snapshot.groups:
        return visit.go(address("groups", text))
    return visit.go(address("messages", q=text))


async def save(visit: Visit) -> Response:
    name, query = visit.form.get("name", ""), visit.form.get("query", "")
    visit.console.saved.save(visit.name, name, query)
    return visit.done(f"Search {name.strip()} is saved.", visit.back("/messages"))


async def forget(visit: Visit) -> Response:
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
