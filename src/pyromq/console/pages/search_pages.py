"""Pages to find messages, follow a topic, export matches, and save searches."""

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
from pyromq.console.search.message_files import MOST_EXPORTED, csv_head, csv_line, json_line
from pyromq.console.search.message_outcome import ORIGINAL, copy_name, dead_letter_group
from pyromq.console.search.query import LIMITS, WAYS, Query
from pyromq.console.search.queue_scan import Match, Projection
from pyromq.console.search.search import Search, SearchResult, wanted
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import change, view
from pyromq.errors import MQError, SubscriptionParseFailed, UsageError
from pyromq.message import MessageQueue, StoredMessage

TAIL_SECONDS = 0.5  # pause between two pulls for browsers that follow a topic
MOST_TAILED = 100  # limit of messages in one pull: people cannot read more
MOST_TAILS = 20  # limit of browsers that follow topics at the same time
ROW_BYTES = 2000  # estimated size of a row without its properties
FIELDS = ("topic", "q", "by", "since", "until", "queue", "limit")

_tails = asyncio.Semaphore(MOST_TAILS)


async def messages(context: RequestContext) -> Response:
    clients = context.clients()
    snapshot = await clients.snapshot()
    kept = {name: value for name in FIELDS if (value := context.query.get(name, ""))}
    query, result, error = Query(), None, None  # type: Query, SearchResult[MessageRow] | None, MQError | None
    try:
        times = context.time_range()
        kept |= times.fields
        query = Query.of(context.query, times)
        if query.topic or query.text:
            with context.console.metrics.searching():
                result = await Search(clients, query, ROWS, seconds=context.console.config.search_seconds).run()
    except (UsageError, SubscriptionParseFailed) as wrong:  # an error of the input, shown beside the form
        error = wrong
    rows = result.found.kept if result is not None else []
    if not query.topic:
        rows = folded(rows)
    if context.query.get("open") and len(rows) == 1 and result is not None and result.is_by_index:
        return context.go(rows[0].link)
    return context.show(
        "messages.html",
        status=400 if error else 200,
        snapshot=snapshot,
        query=query,
        kept=kept,
        result=result,
        error=error,
        rows=rows,
        ways=WAYS,
        limits=LIMITS,
        topic_names=sorted(each.name for each in snapshot.topics.values() if each.kind != "system"),
        saved=context.console.saved.of(context.name),
        next_link=_older(kept, result),
    )


class MessageRow:
    """A message as a row of a list: its fields, and the beginning of its body."""

    def __init__(self, message: StoredMessage) -> None:
        self.body = BodyExcerpt(message)
        self.message = replace_fields(message, stored_body=b"")
        self.copies: list[MessageRow] = []
        self.link = address(
            "message", message.topic, message.broker_name, str(message.queue_id), str(message.queue_offset)
        )

    @property
    def size(self) -> int:
        """The approximate size of the row in bytes."""
        return ROW_BYTES + 2 * len(self.message.property_text)

    @property
    def name(self) -> str:
        """What the row shows: the message itself, or one of its copies."""
        return copy_name(self.message)

    @property
    def dead_in(self) -> list[str]:
        """The groups that made the message a dead letter, sorted."""
        rows = [self, *self.copies]
        return sorted({group for each in rows if (group := dead_letter_group(each.message)) is not None})


def folded(rows: list[MessageRow]) -> list[MessageRow]:
    """Return one row for each message: the message itself, or its earliest copy; the other rows are its `copies`."""
    of_message: dict[str, list[MessageRow]] = {}
    for row in rows:
        of_message.setdefault(row.message.message_id, []).append(row)
    found = []
    for same in of_message.values():
        same.sort(key=lambda row: (row.name != ORIGINAL, row.message.store_ms, row.message.log_offset))
        same[0].copies = same[1:]
        found.append(same[0])
    return found


ROWS = Projection(MessageRow, lambda row: row.size)


async def export(context: RequestContext) -> Response:
    """Send all matches of a search as a file, up to a limit of messages."""
    form = context.query.get("format", "jsonl")
    if form not in ("jsonl", "csv"):
        raise UsageError(f"format={form[:20]!r} is unknown; write jsonl or csv")
    query = replace(Query.of(context.query, context.time_range()), limit=MOST_EXPORTED)
    if not query.topic and not query.text:
        raise UsageError("the search is empty: name a topic, or a text to search for")
    lines = Projection(json_line if form == "jsonl" else csv_line, len)
    seconds = 10 * context.console.config.search_seconds
    with context.console.metrics.searching():
        result = await Search(context.clients(), query, lines, seconds=seconds).run()
    found = result.found
    kind = "application/x-ndjson" if form == "jsonl" else "text/csv; charset=utf-8"
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(query.topic or 'messages', safe='')}.{form}"
    }
    if found.before or found.why:
        headers["x-incomplete"] = f"after {len(found.kept)} messages: {found.why}"
    head = [] if form == "jsonl" else [csv_head()]
    return Response(b"".join(head + found.kept), media_type=kind, headers=headers)


async def tail(context: RequestContext) -> Response:
    """Send new messages of a topic as server-sent events. Each event is a table row."""
    query = Query.of(context.query, context.time_range())
    if not query.topic:
        raise UsageError("the topic is missing: name the topic to follow")
    reader = await context.clients().reader()
    ends = {queue: most for queue, (_, most) in (await reader.bounds([query.topic])).items()}
    if _tails.locked():
        raise UsageError(f"{MOST_TAILS} browsers follow topics already; close one first")
    return StreamingResponse(_events(context, reader, query, ends), media_type="text/event-stream")


async def _events(
    context: RequestContext, reader: AsyncQueueReader, query: Query, ends: dict[MessageQueue, int]
) -> AsyncIterator[bytes]:
    match, tag, sql = wanted(query)
    template = context.templates.get_template("message_row.html")
    async with _tails:
        yield b"retry: 2000\n\n"
        while context.console.sessions.find(context.session.key) is not None:
            try:
                bounds = await reader.bounds([query.topic])
            except MQError as error:
                yield _event("trouble", {"text": str(error)})
                await asyncio.sleep(4 * TAIL_SECONDS)
                continue
            found: list[MessageRow] = []
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
                yield b": still here\n\n"  # only a write detects a closed connection
            await asyncio.sleep(TAIL_SECONDS)


def _rows(result: PullResult, match: Match) -> list[MessageRow]:
    return [MessageRow(each) for each in result.messages if match.accepts(each)]


def _event(kind: str, data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _older(kept: dict[str, str], result: SearchResult[MessageRow] | None) -> str:
    if result is None or not result.found.before:
        return ""
    return address("messages", **kept, before=result.found.before)


async def find(context: RequestContext) -> Response:
    """Answer the search box of every page.

    The name of a topic or group opens its page, the id or key of one message its page. Other input searches messages.
    """
    text = context.query.get("q", "").strip()
    snapshot = await context.clients().snapshot()
    if text in snapshot.topics:
        return context.go(address("topics", text))
    if text in snapshot.groups:
        return context.go(address("groups", text))
    return context.go(address("messages", q=text, open="one"))


async def save(context: RequestContext) -> Response:
    name, query = context.form.get("name", ""), context.form.get("query", "")
    context.console.saved.save(context.name, name, query)
    return context.done(f"Search {name.strip()} is saved.", context.back("/messages"))


async def forget(context: RequestContext) -> Response:
    name = context.form.get("name", "")
    context.console.saved.delete(context.name, name)
    return context.done(f"Search {name} is deleted.", context.back("/messages"))


ROUTES = [
    view("/find", find),
    view("/messages", messages),
    view("/messages/export", export),
    view("/messages/tail", tail),
    change("/messages/save", save, needs=Role.VIEWER, what="save search"),
    change("/messages/forget", forget, needs=Role.VIEWER, what="delete search"),
]
