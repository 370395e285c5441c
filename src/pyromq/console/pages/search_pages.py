"""Pages to find messages, follow a topic, export matches, and save searches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace as replace_fields
from starlette.responses import JSONResponse, Response, StreamingResponse

from pyromq.client.admin.messages.message_search import PARKED_IN
from pyromq.client.consumer.pulling import PullResult
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.console.cluster.cluster_snapshot import ClusterSnapshot
from pyromq.console.pages.message_pages import PLACES, has_place, link_of, stored
from pyromq.console.search.bodies import BodyExcerpt, BodyView
from pyromq.console.search.found_names import KINDS, FoundName, equal_names, found_names, similar_names
from pyromq.console.search.message_columns import COLUMNS, COLUMNS_COOKIE, COLUMNS_SECONDS, MessageColumns
from pyromq.console.search.message_files import MAX_EXPORTED, csv_head, csv_line, json_line
from pyromq.console.search.message_outcome import ORIGINAL, copy_name, dead_letter_group
from pyromq.console.search.query import LIMITS, WAYS, Query
from pyromq.console.search.queue_scan import Match, Projection
from pyromq.console.search.search import BODY, Search, SearchResult, body_fields, wanted
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.error_texts import sentence
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import change, status_of, view
from pyromq.errors import MQError, TopicNotFound, UsageError
from pyromq.message import MessageQueue, StoredMessage

TAIL_SECONDS = 0.5  # pause between two pulls for browsers that follow a topic
MAX_TAILED = 100  # limit of messages in one pull: people cannot read more
MAX_TAILS = 20  # limit of browsers that follow topics at the same time
ROW_BYTES = 2000  # estimated size of a row without its properties
FIELDS = ("topic", "q", "by", "case", "since", "until", "queue", "limit")
MAX_LISTED = 50  # limit of names on the page of found names; the lists of topics and groups have all
MAX_SUGGESTED = 12  # limit of names below a field: as many as a person reads while typing

_tails = asyncio.Semaphore(MAX_TAILS)


async def messages(context: RequestContext) -> Response:
    clients = context.clients()
    snapshot = await clients.snapshot()
    kept = {name: value for name in FIELDS if (value := context.query.get(name, ""))}
    columns = _columns(context)
    query = Query()
    result: SearchResult[MessageRow] | None = None
    error: MQError | None = None
    try:
        times = context.time_range()
        kept |= times.fields
        query = Query.of(context.query, times)
        if query.topic or query.text:
            seconds = context.console.config.search_seconds
            with context.console.metrics.searching():
                result = await Search(clients, query, rows_with(columns), seconds=seconds).run()
    except MQError as wrong:  # shown beside the form, which keeps what was typed
        error = wrong
    rows = result.found.kept if result is not None else []
    if not query.topic:
        rows = folded(rows)
    if context.query.get("open") and len(rows) == 1 and result is not None and result.is_by_index:
        return context.go(rows[0].link)
    response = context.show(
        "messages.html",
        status=status_of(error) if error is not None else 200,
        snapshot=snapshot,
        query=query,
        kept=kept,
        result=result,
        error=error,
        rows=rows,
        similar=_topics_like(context, snapshot) if isinstance(error, TopicNotFound) else [],
        ways=WAYS,
        limits=LIMITS,
        columns=columns,
        all_columns=COLUMNS,
        saved=context.console.saved.of(context.name),
        next_link=_older(kept, result),
    )
    if "columns" in context.query:
        secure = context.console.config.speaks_https
        options: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": secure, "max_age": COLUMNS_SECONDS}
        response.set_cookie(COLUMNS_COOKIE, columns.cookie, **options)
    return response


def _columns(context: RequestContext) -> MessageColumns:
    """Return the columns that the address names, else those that the viewer chose before."""
    params = context.request.query_params
    if "columns" in params:
        return MessageColumns.of(params.getlist("columns"), params.get("fields", ""))
    return MessageColumns.of_cookie(context.request.cookies.get(COLUMNS_COOKIE))


def _topics_like(context: RequestContext, snapshot: ClusterSnapshot) -> list[FoundName]:
    name = context.query.get("topic", "").strip()
    return (found_names(snapshot, name, ("topic",)) or similar_names(snapshot, name, ("topic",)))[:MAX_SUGGESTED]


class MessageRow:
    """A message as a row of a list: its fields, and the beginning of its body.

    `values` are the values of columns of properties and of fields of a JSON body; None for absent ones.
    """

    def __init__(self, message: StoredMessage, fields: Sequence[str] = ()) -> None:
        self.body = BodyExcerpt(message)
        found = message.properties if fields else {}
        if any(each.startswith(BODY) for each in fields):
            found = {**found, **body_fields(message)}
        self.values = [found.get(each) for each in fields]
        self.stored_size = len(message.stored_body)
        self.message = replace_fields(message, stored_body=b"")
        self.copies: list[MessageRow] = []
        self.link = link_of(message)

    @property
    def size(self) -> int:
        """The approximate size of the row in bytes."""
        return ROW_BYTES + 2 * len(self.message.property_text) + sum(len(each or "") for each in self.values)

    @property
    def name(self) -> str:
        """The name of what the row shows: the message itself, or one of its copies."""
        return copy_name(self.message)

    @property
    def is_undelivered(self) -> bool:
        """Whether only copies in internal topics are found: the message waits, or has expired since."""
        return self.message.topic in PARKED_IN

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


def rows_with(columns: MessageColumns) -> Projection[MessageRow]:
    return Projection(lambda message: MessageRow(message, columns.fields), lambda row: row.size)


async def export(context: RequestContext) -> Response:
    """Send all matches of a search as a file, up to a limit of messages."""
    form = context.query.get("format", "jsonl")
    if form not in ("jsonl", "csv"):
        raise UsageError(f"format={form[:20]!r} is unknown; write jsonl or csv")
    query = replace(Query.of(context.query, context.time_range()), limit=MAX_EXPORTED)
    if not query.topic and not query.text:
        raise UsageError("the search is empty: name a topic, or a string to search for")
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
        raise UsageError(f"{MAX_TAILS} browsers follow topics already; close one first")
    events = _events(context, reader, query, ends, _columns(context))
    return StreamingResponse(events, media_type="text/event-stream")


async def _events(
    context: RequestContext,
    reader: AsyncQueueReader,
    query: Query,
    ends: dict[MessageQueue, int],
    columns: MessageColumns,
) -> AsyncIterator[bytes]:
    match, tag, sql = wanted(query)
    template = context.templates.get_template("message_row.html")
    shown = columns.shown(with_topic=False)
    async with _tails:
        yield b"retry: 2000\n\n"
        while context.console.sessions.find(context.session.key) is not None:
            try:
                bounds = await reader.bounds([query.topic])
            except MQError as error:
                yield _event("trouble", {"text": sentence(error)})
                await asyncio.sleep(4 * TAIL_SECONDS)
                continue
            found: list[MessageRow] = []
            try:
                for queue, (_, most) in bounds.items():
                    at = ends.setdefault(queue, 0)
                    if at < most:
                        skipped = max(at, most - MAX_TAILED)
                        result = await reader.pull(queue, skipped, MAX_TAILED, tags=tag, sql=sql)
                        found += await asyncio.to_thread(_rows, result, match, columns)
                        ends[queue] = max(result.next_offset, at)
            except MQError as error:
                yield _event("trouble", {"text": sentence(error)})
            found.sort(key=lambda each: each.message.store_ms)
            if found:
                html = [template.render(row=each, shown=shown) for each in found[-MAX_TAILED:]]
                yield _event("rows", {"rows": html, "more": max(0, len(found) - MAX_TAILED)})
            else:
                yield b": still here\n\n"  # only a write detects a closed connection
            await asyncio.sleep(TAIL_SECONDS)


def _rows(result: PullResult, match: Match, columns: MessageColumns) -> list[MessageRow]:
    return [MessageRow(each, columns.fields) for each in result.messages if match.accepts(each)]


def _event(kind: str, data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _older(kept: dict[str, str], result: SearchResult[MessageRow] | None) -> str:
    if result is None or not result.found.before:
        return ""
    return address("messages", **kept, before=result.found.before)


async def inline(context: RequestContext) -> Response:
    """Send the part of a page that a list shows below a message: its body and its properties."""
    found = await stored(context)
    body = await asyncio.to_thread(BodyView, found)
    return context.part(
        "message_inline.html", message=found, body=body, link=link_of(found), has_place=has_place(found)
    )


async def find(context: RequestContext) -> Response:
    """Answer the search box of every page.

    A name opens its page, a part of names lists them, other input searches messages.
    """
    text = context.query.get("q", "").strip()
    snapshot = await context.clients().snapshot()
    equal = equal_names(snapshot, text)
    if len(equal) == 1:
        return context.go(equal[0].link)
    found = found_names(snapshot, text)
    if not found:
        return context.go(address("messages", q=text, open="one"))
    return context.show("find.html", text=text, found=found, most=MAX_LISTED)


async def names(context: RequestContext) -> Response:
    """Send, as JSON, names of topics, groups and brokers that contain the typed text; if none does, similar names.

    The browser suggests them below the input field.
    """
    text, kind = context.query.get("q", "").strip(), context.query.get("kind", "")
    kinds = (kind,) if kind in KINDS else KINDS
    snapshot = await context.clients().snapshot()
    found = (found_names(snapshot, text, kinds) or similar_names(snapshot, text, kinds))[:MAX_SUGGESTED]
    return JSONResponse(
        [{"kind": each.kind, "name": each.name, "note": each.note, "link": each.link} for each in found]
    )


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
    view("/find/names", names),
    view("/messages", messages),
    view("/messages/export", export),
    view("/messages/tail", tail),
    *(view(place + "/inline", inline) for place in PLACES),
    change("/messages/save", save, needs=Role.VIEWER, what="save search"),
    change("/messages/forget", forget, needs=Role.VIEWER, what="delete search"),
]
