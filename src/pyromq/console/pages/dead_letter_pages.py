"""Pages of dead letters: groups with dead letters, and the dead letters of one group with reason and origin."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from msgspec.structs import replace as replace_fields
from starlette.responses import Response

from pyromq.client.admin.messages.dead_letters import (
    REDRIVEN_FROM,
    DeadLetter,
    DeadLetterFilter,
    Fate,
    RedriveOrder,
)
from pyromq.client.consumer.queue_reader import Bounds
from pyromq.console.cluster.cluster_snapshot import TopicView
from pyromq.console.cluster.redrives import MAX_OUTCOMES, RedriveOutcome, RedriveRequest, RedriveRun
from pyromq.console.pages.search_pages import MessageRow
from pyromq.console.search.query import LIMITS
from pyromq.console.search.queue_scan import Match, Projection, QueueScan, ScanResult, bounds_between, narrowed
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.request_context import MAX_LONG, RequestContext, address, whole
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.errors import MQError, QueryNotFound, TopicNotFound, UsageError
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import DEAD_LETTER_PREFIX, check_group, dead_letter_topic

T = TypeVar("T")

HOW = ("to", "to_topic", "most", "rate", "again")
MAX_TRIED = 200  # limit of dead letters in a dry run: each needs a request that looks for an earlier copy
DEFAULTS = {"to": "group", "most": "1000", "rate": "100"}  # defaults of the form, chosen to flood no consumer

# Fields of the address that select dead letters.
CHOICE = ("id", "topic", "pattern", "reason", "tag", "key", "since", "until")
PAGE = 50
MAX_COUNTED = 10_000  # limit of dead letters whose reasons are counted: reading them takes half a second
MAX_REASONS = 20  # limit of reasons in the table
MAX_LAST = 20  # limit of groups whose last reason is shown: each needs two requests
MARK_SECONDS = 1.0  # time limit for what a list shows beside its rows: redriven copies, last reasons
SHORT_SECONDS = 0.5  # a redrive that ends within this time is shown with its outcome at once


async def dead_letters(context: RequestContext) -> Response:
    snapshot = await context.clients().snapshot()
    table = Table[TopicView](
        [each for each in snapshot.topics.values() if each.kind == "dead letters" and each.messages],
        context.query,
        columns={
            "group": lambda each: each.name.casefold(),
            "letters": lambda each: (each.messages, each.name),
            "last": lambda each: (each.last_store_ms, each.name),
        },
        sort="-last",
        text=_group_of,
    )
    last = await _last_letters(context, [_group_of(each) for each in table.rows[:MAX_LAST]])
    return context.show("dead_letters.html", table=table, snapshot=snapshot, group_of=_group_of, last=last)


async def _last_letters(context: RequestContext, groups: Sequence[str]) -> dict[str, DeadLetter]:
    """Return the latest dead letter of each group, as far as brokers answer within `MARK_SECONDS`."""
    reader = await context.clients().reader()
    found: dict[str, DeadLetter] = {}

    async def look(group: str) -> None:
        try:
            bounds = await reader.bounds([dead_letter_topic(group)])
            ends = [(queue, most - 1, 1) for queue, (least, most) in bounds.items() if least < most]
            last = [message for result in await reader.pull_all(ends) for message in result.messages]
        except MQError:
            return  # the page shows the other groups
        if last:
            found[group] = DeadLetter(group, max(last, key=lambda message: message.store_ms))

    try:
        async with asyncio.timeout(MARK_SECONDS):
            await asyncio.gather(*map(look, groups))
    except TimeoutError:
        pass
    return found


async def of_group(context: RequestContext) -> Response:
    """Show the dead letters of a group, latest first, as far as they are read within the time limit."""
    group = context.path["group"]
    check_group(group)
    clients = context.clients()
    snapshot = await clients.snapshot()
    found, reasons, error, query = ScanResult[LetterRow](), ReasonTable(), None, dict(context.query)
    try:
        query |= context.time_range().fields
        wanted = wanted_letters(query)
        found, reasons = await asyncio.gather(_found(context, group, wanted), _reasons(context, group, wanted))
        await _mark_redriven(context, group, found.kept)
    except UsageError as wrong:  # an error of the input, shown beside the form
        error = wrong
    except TopicNotFound:
        pass  # the group has had no dead letter yet
    choice = {name: query.get(name, "") for name in CHOICE}
    kept = {**choice, "limit": query.get("limit", "")}
    return context.show(
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
        is_narrowed=any(choice.values()),
        is_filtered=any(value for name, value in choice.items() if name not in ("id", "pattern")),
        reasons=reasons,
        reason_link=lambda pattern: address("dead-letters", group, **{**kept, "pattern": pattern}),
        redrive_reason_link=lambda pattern: address("dead-letters", group, "redrive", **{**choice, "pattern": pattern}),
        error=error,
        limits=LIMITS,
        redrive_link=address("dead-letters", group, "redrive", **choice),
        next_link=address("dead-letters", group, **kept, before=found.before) if found.before else "",
        runs=context.console.redrives.of(group),
    )


class LetterRow(MessageRow):
    """A dead letter as a row of a list."""

    def __init__(self, group: str, message: StoredMessage) -> None:
        super().__init__(message)
        self.letter = DeadLetter(group, self.message)
        self.copy_link = ""  # address of the redriven copy, if there is one
        died = str(message.store_ms)  # with the time, the message is found without reading the whole queue
        self.redrive_link = address(
            "dead-letters", group, "redrive", id=message.offset_message_id, since=died, until=died
        )


@dataclass(slots=True)
class ReasonCount:
    """The dead letters whose reasons have one pattern.

    `latest` is the newest reason, `last_ms` its time. `left` counts the dead letters to redrive, `redriven` those that
    were redriven.
    """

    pattern: str
    latest: str
    last_ms: int
    left: int = 0
    redriven: int = 0


@dataclass(slots=True)
class ReasonTable:
    """Patterns of reasons, those with the most dead letters left first. `read` is the number of dead letters counted.

    `is_partial`: older dead letters are not counted. `more` patterns are left out. `misses_copies`: the time was up
    before all redriven copies were found, so more dead letters may be redriven than counted.
    """

    rows: Sequence[ReasonCount] = ()
    read: int = 0
    is_partial: bool = False
    more: int = 0
    misses_copies: bool = False


async def _reasons(context: RequestContext, group: str, wanted: DeadLetterFilter) -> ReasonTable:
    """Count the selected dead letters by the patterns of their reasons, whichever pattern is selected."""
    scan = await _scan(
        context,
        group,
        replace(wanted, pattern=None),
        keeping=Projection(
            lambda message: DeadLetter(group, replace_fields(message, stored_body=b"")),
            lambda letter: 200 + 2 * len(letter.message.property_text),
        ),
        limit=MAX_COUNTED,
    )
    found = await scan.run()
    redriven, is_complete = await _redriven(context, group, found.kept)
    counts: dict[str, ReasonCount] = {}
    for letter in found.kept:  # latest first
        pattern, message = letter.pattern, letter.message
        count = counts.setdefault(pattern, ReasonCount(pattern, letter.reason or "", message.store_ms))
        if message.offset_message_id in redriven:
            count.redriven += 1
        else:
            count.left += 1
    rows = sorted(counts.values(), key=lambda each: (-each.left, -each.redriven, each.pattern))
    more = max(0, len(rows) - MAX_REASONS)
    return ReasonTable(rows[:MAX_REASONS], len(found.kept), bool(found.before), more, not is_complete)


class _IsCopy(Match):
    """Matches the copies that redrives have sent."""

    words = (REDRIVEN_FROM.encode(),)

    def accepts(self, message: StoredMessage) -> bool:
        return REDRIVEN_FROM in message.properties


async def _redriven(context: RequestContext, group: str, letters: Sequence[DeadLetter]) -> tuple[set[str], bool]:
    """Return the offset ids of redriven dead letters, and whether all messages were read that may be their copies.

    Copies are in the group's retry topics, in the original topics, or in topics that the audit log names. They are
    read, latest first, for `MARK_SECONDS`: looking up each dead letter would take two requests or more for each.
    """
    sent = context.console.redrives.copies()
    known = {
        each.message.offset_message_id for each in letters if (each.message.queue, each.message.queue_offset) in sent
    }
    if len(known) == len(letters):
        return known, True
    reader, first_ms = await context.clients().reader(), min(each.message.store_ms for each in letters)
    bounds: dict[MessageQueue, Bounds] = {}
    origins = {each.original_topic for each in letters if each.original_topic}
    retries = {topic for each in letters for topic in each.retry_topics}
    for topic in retries | origins | context.console.redrives.topics(group):
        try:
            bounds |= await bounds_between(reader, [topic], first_ms, None)
        except MQError:
            continue  # the topic was deleted
    keeping = Projection(lambda message: message.properties[REDRIVEN_FROM], lambda name: 200)
    scan = QueueScan(reader, bounds, _IsCopy(), keeping=keeping, limit=MAX_COUNTED, seconds=MARK_SECONDS)
    found = await scan.run()
    return known | set(found.kept), not found.before


async def _mark_redriven(context: RequestContext, group: str, rows: Sequence[LetterRow]) -> None:
    """Set the address of the redriven copy in each row, as far as brokers answer within `MARK_SECONDS`."""
    client = await context.clients().dead_letters()
    sent = context.console.redrives.copies()
    topics = context.console.redrives.topics(group)
    for row in rows:
        if (copy := sent.get((row.message.queue, row.message.queue_offset))) is not None:
            row.copy_link = place_link(copy)
    left = [row for row in rows if not row.copy_link]
    try:
        async with asyncio.timeout(MARK_SECONDS):
            found = await client.redriven([row.letter for row in left], topics=topics)
    except (MQError, TimeoutError):
        return  # the rows are shown without marks
    for row in left:
        if (message := found.get(row.message.offset_message_id)) is not None:
            row.copy_link = place_link((message.queue, message.queue_offset))


def wanted_letters(query: Mapping[str, str]) -> DeadLetterFilter:
    """Return the filter of dead letters that an address or a form describes; times are in ms. Raises `UsageError`."""
    text = {name: query.get(name, "").strip() for name in CHOICE}
    return DeadLetterFilter(
        ids=frozenset([text["id"].upper()] if text["id"] else []),
        topic=text["topic"] or None,
        tag=text["tag"] or None,
        key=text["key"] or None,
        reason=text["reason"] or None,
        pattern=text["pattern"] or None,
        since_ms=whole("since", text["since"] or "0", most=MAX_LONG),
        until_ms=whole("until", text["until"], most=MAX_LONG) if text["until"] else None,
    )


class _Match(Match):
    """Matches the dead letters that a redrive would select."""

    def __init__(self, group: str, wanted: DeadLetterFilter) -> None:
        self._group, self._wanted = group, wanted

    def accepts(self, message: StoredMessage) -> bool:
        return self._wanted.accepts(DeadLetter(self._group, message))


async def _scan(
    context: RequestContext,
    group: str,
    wanted: DeadLetterFilter,
    *,
    keeping: Projection[T],
    limit: int,
    before: str = "",
) -> QueueScan[T]:
    reader = await context.clients().reader()
    bounds = await bounds_between(reader, [dead_letter_topic(group)], wanted.since_ms or None, wanted.until_ms)
    seconds = context.console.config.search_seconds
    match = _Match(group, wanted)
    return QueueScan(reader, narrowed(bounds, before), match, keeping=keeping, limit=limit, seconds=seconds)


async def _found(context: RequestContext, group: str, wanted: DeadLetterFilter) -> ScanResult[LetterRow]:
    limit = context.query.get("limit", "")
    scan = await _scan(
        context,
        group,
        wanted,
        keeping=Projection(partial(LetterRow, group), lambda row: row.size),
        limit=int(limit) if limit in map(str, LIMITS) else PAGE,
        before=context.query.get("before", ""),
    )
    with context.console.metrics.searching():
        return await scan.run()


def _group_of(topic: TopicView) -> str:
    return topic.name.removeprefix(DEAD_LETTER_PREFIX)


async def dry_run(context: RequestContext) -> Response:
    """Show what a redrive would do with the first selected dead letters; nothing is sent."""
    group = context.path["group"]
    check_group(group)
    fields = {name: context.query.get(name, "") for name in (*CHOICE, *HOW)}
    fields |= {name: value for name, value in DEFAULTS.items() if not fields[name]}
    outcomes: list[RedriveOutcome] = []
    why, error = "", None
    try:
        fields |= context.time_range().fields
        order = replace(order_of(fields), dry_run=True)
        why = await _try(context, group, wanted_letters(fields), order, outcomes)
    except MQError as wrong:
        error = wrong
    fates = Counter(each.fate for each in outcomes)
    snapshot = await context.clients().snapshot()
    would = fates[Fate.WOULD_BE_SENT]
    # If the dry run reached the end, the redrive sends exactly the dead letters found, and none added since.
    sent_form = fields if why else {**fields, "most": str(would)}
    return context.show(
        "redrive.html",
        status=400 if isinstance(error, UsageError) else 200,
        group=group,
        fields=fields,
        is_changed=any(fields[name] != DEFAULTS.get(name, "") for name in HOW),
        choice={name: fields[name] for name in CHOICE if fields[name]},
        outcomes=outcomes,
        fates=fates,
        would=would,
        why=why,
        error=error,
        sent_form=sent_form,
        members=snapshot.groups[group].members if group in snapshot.groups else (),
        most=MAX_OUTCOMES,
        link=place_link,
    )


async def redrive(context: RequestContext) -> Response:
    group = context.path["group"]
    fields = {name: context.form.get(name, "").strip() for name in (*CHOICE, *HOW)} | context.time_range().fields
    asked = RedriveRequest(
        group,
        wanted_letters(fields),
        order_of(fields),
        account=context.name,
        address=context.console.address_of(context.request),
        choice={name: value for name, value in fields.items() if value},
    )
    run = context.console.redrives.begin(await context.clients().dead_letters(), asked)
    context.result = f"redrive {run.id} began"
    await context.console.redrives.wait(run, SHORT_SECONDS)
    return context.go(address("dead-letters", group, "redrives", run.id))


async def progress(context: RequestContext) -> Response:
    run = _run(context)
    table = Table[RedriveOutcome](
        run.outcomes,
        context.query,
        columns={"number": lambda each: 0, "fate": lambda each: each.fate.value},
        sort="number",  # the order in which the messages were sent
        text=lambda each: " ".join((each.message_id, each.keys, each.fate.value, each.error, each.destination)),
    )
    return context.show(
        "redrive_run.html", run=run, table=table, fates=Fate, most=MAX_OUTCOMES, link=place_link, state=_state(run)
    )


async def stop(context: RequestContext) -> Response:
    run = _run(context)
    at = address("dead-letters", run.group, "redrives", run.id)
    if run.ended_ms is not None:
        raise UsageError(f"redrive {run.id} has already ended: {run.summary}")
    run.is_stopped = True
    return context.done(f"Redrive {run.id} ends after the present message.", at)


def order_of(fields: Mapping[str, str]) -> RedriveOrder:
    """Return the settings of a redrive from the fields of a form. Raises `UsageError`."""
    to, most, rate = fields["to"] or "group", fields["most"], fields["rate"]
    if to not in ("group", "origin", "topic"):
        raise UsageError(
            f"to={to[:20]!r} is unknown: copies go to the group, to their original topics, or to one topic"
        )
    if to == "topic" and not fields["to_topic"]:
        raise UsageError("the topic is missing: name the topic that gets the copies")
    if not most.isdecimal() or len(most) > 9 or not 1 <= int(most) <= MAX_OUTCOMES:
        raise UsageError(
            f"the limit of {most[:20]!r} messages is out of range; one redrive sends 1 to {MAX_OUTCOMES:,}"
        )
    try:
        per_second = float(rate) if rate else None
    except ValueError:
        raise UsageError(f"rate {rate[:20]!r} is not a number; write messages a second, for example 100") from None
    if per_second is not None and not 0.1 <= per_second <= 100_000:
        raise UsageError(f"rate {rate[:20]} is out of range; write 0.1 to 100,000 messages a second")
    return RedriveOrder(
        to_origin=to == "origin",
        to_topic=fields["to_topic"] if to == "topic" else None,
        most=int(most),
        per_second=per_second,
        again=bool(fields["again"]),
    )


def place_link(place: tuple[MessageQueue, int]) -> str:
    """Return the address of the page of the message at a queue offset."""
    queue, offset = place
    return address("message", queue.topic, queue.broker_name, str(queue.queue_id), str(offset))


async def _try(
    context: RequestContext, group: str, wanted: DeadLetterFilter, order: RedriveOrder, outcomes: list[RedriveOutcome]
) -> str:
    """Add the outcomes of the dry run. Return the reason of an early end (`enough` or `time`), else ""."""
    client = await context.clients().dead_letters()
    try:
        async with (
            asyncio.timeout(context.console.config.search_seconds),
            aclosing(client.redrive(group, wanted, order)) as found,
        ):
            async for each in found:
                if len(outcomes) == MAX_TRIED:
                    return "enough"
                outcomes.append(RedriveOutcome.of(each))
    except TimeoutError:
        return "time"
    return ""


def _run(context: RequestContext) -> RedriveRun:
    run = context.console.redrives.find(context.path["run"])
    if run is None or run.group != context.path["group"]:
        raise QueryNotFound(
            f"redrive {context.path['run'][:40]} is unknown: the console was restarted since, or the redrive is "
            "too old; the audit log records it"
        )
    return run


def _state(run: RedriveRun) -> tuple[str, str]:
    """Return kind and text of the badge for a redrive, which is green only if every message was sent."""
    if run.ended_ms is None:
        return "warn", "stopping" if run.is_stopped else "in progress"
    if run.error:
        return "bad", "ended before its time"
    if run.fates[Fate.FAILED]:
        return "bad", "ended, with failures"
    return ("good", "done") if run.fates[Fate.SENT] else ("", "nothing was to send")


ROUTES = [
    view("/dead-letters", dead_letters),
    view("/dead-letters/{group}", of_group),
    view("/dead-letters/{group}/redrive", dry_run, needs=Role.OPERATOR),
    change("/dead-letters/{group}/redrive", redrive, needs=Role.OPERATOR, what="begin redrive"),
    view("/dead-letters/{group}/redrives/{run}", progress),
    change("/dead-letters/{group}/redrives/{run}/stop", stop, needs=Role.OPERATOR, what="stop redrive"),
]
