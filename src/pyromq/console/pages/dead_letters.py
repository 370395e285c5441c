"""Dead letters: groups that have some, and those of one group: why they died, where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from starlette.responses import Response

from pyromq.client.admin.messages.dead_letters import DeadLetter, DeadLetterFilter
from pyromq.console.cluster.snapshot import TopicView
from pyromq.console.pages.messages import Row
from pyromq.console.search.query import LIMITS, moment
from pyromq.console.search.scanning import Found, Keeping, Scan, bounds_between, narrowed
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import view
from pyromq.console.view.table import Table
from pyromq.errors import TopicNotFound, UsageError
from pyromq.message import StoredMessage
from pyromq.names import DEAD_LETTER_PREFIX, check_group, dead_letter_topic

CHOICE = ("id", "topic", "reason", "tag", "key", "since", "until")  # which dead letters are meant, in the address
PAGE = 50


async def dead_letters(visit: RequestContext) -> Response:
    snapshot = await (await visit.clients()).snapshot()
    table = Table[TopicView](
        [each for each in snapshot.topics.values() if each.kind == "dead letters" and each.messages],
        visit.query,
        columns={
            "group": lambda each: each.name.casefold(),
            "letters": lambda each: (each.messages, each.name),
            "last": lambda each: (each.last_store_ms, each.name),
        },
        sort="-last",
        text=_group_of,
    )
    return visit.show("dead_letters.html", table=table, snapshot=snapshot, group_of=_group_of)


async def of_group(visit: RequestContext) -> Response:
    """Latest first, a page of them; how many were read for it is bounded by time."""
    group = visit.path["group"]
    check_group(group)
    clients = await visit.clients()
    snapshot = await clients.snapshot()
    found, error = Found[LetterRow](), None
    try:
        wanted = wanted_letters(visit.query)
        found = await _found(visit, group, wanted)
    except UsageError as wrong:  # of what was typed: it is shown beside the form
        error = wrong
    except TopicNotFound:
        pass  # it never had a dead letter
    kept = {name: visit.query.get(name, "") for name in (*CHOICE, "limit")}
    return visit.show(
        "dead_letters_of_group.html",
        status=400 if error else 200,
        group=group,
        topic=dead_letter_topic(group),
        view=snapshot.topics.get(dead_letter_topic(group)),
        is_known=group in snapshot.groups,
        members=snapshot.groups[group].members if group in snapshot.groups else (),
        snapshot=snapshot,
        rows=found.kept,
        found=found,
        kept=kept,
        is_narrowed=any(kept[name] for name in CHOICE),
        error=error,
        limits=LIMITS,
        redrive_link=address("dead-letters", group, "redrive", **{name: kept[name] for name in CHOICE}),
        next_link=address("dead-letters", group, **kept, before=found.before) if found.before else "",
        runs=visit.console.redrives.of(group),
    )


class LetterRow(Row):
    """A dead letter in a list."""

    def __init__(self, group: str, message: StoredMessage) -> None:
        super().__init__(message)
        self.letter = DeadLetter(group, self.message)
        died = str(message.store_ms)  # with it, it is found without reading all
        self.redrive_link = address(
            "dead-letters", group, "redrive", id=message.offset_message_id, since=died, until=died
        )


def wanted_letters(query: Mapping[str, str]) -> DeadLetterFilter:
    """Return which dead letters an address or a form means. Raises `UsageError`."""
    text = {name: query.get(name, "").strip() for name in CHOICE}
    return DeadLetterFilter(
        ids=frozenset([text["id"].upper()] if text["id"] else []),
        topic=text["topic"] or None,
        tag=text["tag"] or None,
        key=text["key"] or None,
        reason=text["reason"] or None,
        since_ms=moment(text["since"]) or 0,
        until_ms=moment(text["until"]),
    )


class _Match:
    """Compares as a redrive does."""

    words = ()

    def __init__(self, group: str, wanted: DeadLetterFilter) -> None:
        self._group, self._wanted = group, wanted

    def accepts(self, message: StoredMessage) -> bool:
        return self._wanted.accepts(DeadLetter(self._group, message))


async def _found(visit: RequestContext, group: str, wanted: DeadLetterFilter) -> Found[LetterRow]:
    reader = await (await visit.clients()).reader()
    bounds = await bounds_between(reader, [dead_letter_topic(group)], wanted.since_ms or None, wanted.until_ms)
    bounds = narrowed(bounds, visit.query.get("before", ""))
    limit = visit.query.get("limit", "")
    scan = Scan(
        reader,
        bounds,
        _Match(group, wanted),
        keeping=Keeping(partial(LetterRow, group), lambda row: row.size),
        limit=int(limit) if limit in map(str, LIMITS) else PAGE,
        seconds=visit.console.config.search_seconds,
    )
    with visit.console.metrics.searching():
        return await scan.run()


def _group_of(topic: TopicView) -> str:
    return topic.name.removeprefix(DEAD_LETTER_PREFIX)


ROUTES = [view("/dead-letters", dead_letters), view("/dead-letters/{group}", of_group)]
