"""Redriving dead letters: a dry run first, then a redrive that goes on by itself, with an outcome for each message."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

from starlette.responses import Response

from pyromq.client.admin.messages.dead_letters import DeadLetterFilter, Fate, RedriveOrder
from pyromq.console.cluster.redrives import MOST_OUTCOMES, Asked, Outcome, Run
from pyromq.console.pages.dead_letters import CHOICE, wanted_letters
from pyromq.console.security.accounts import Role
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.errors import MQError, QueryNotFound, UsageError
from pyromq.message import MessageQueue
from pyromq.names import check_group

HOW = ("to", "to_topic", "most", "rate", "again")
MOST_TRIED = 200  # outcomes of a dry run: each asks brokers whether a copy was sent before
DEFAULTS = {"to": "group", "most": "1000", "rate": "100"}  # a redrive nobody thought about floods nobody


async def dry_run(visit: RequestContext) -> Response:
    """What a redrive would do with the first dead letters that are meant; nothing is sent."""
    group = visit.path["group"]
    check_group(group)
    fields = {name: visit.query.get(name, "") for name in (*CHOICE, *HOW)}
    fields |= {name: value for name, value in DEFAULTS.items() if not fields[name]}
    outcomes: list[Outcome] = []
    why, error = "", None
    try:
        order = replace(order_of(fields), dry_run=True)
        why = await _try(visit, group, wanted_letters(fields), order, outcomes)
    except MQError as wrong:
        error = wrong
    fates = Counter(each.fate for each in outcomes)
    snapshot = await (await visit.clients()).snapshot()
    would = fates[Fate.WOULD_BE_SENT]
    # Exactly what the dry run found, where it came to its end: not what died meanwhile.
    sent_form = fields if why else {**fields, "most": str(would)}
    return visit.show(
        "redrive.html",
        status=400 if isinstance(error, UsageError) else 200,
        group=group,
        fields=fields,
        choice={name: fields[name] for name in CHOICE if fields[name]},
        outcomes=outcomes,
        fates=fates,
        would=would,
        why=why,
        error=error,
        sent_form=sent_form,
        members=snapshot.groups[group].members if group in snapshot.groups else (),
        most=MOST_OUTCOMES,
        link=place_link,
    )


async def redrive(visit: RequestContext) -> Response:
    group = visit.path["group"]
    fields = {name: visit.form.get(name, "").strip() for name in (*CHOICE, *HOW)}
    asked = Asked(
        group,
        wanted_letters(fields),
        order_of(fields),
        account=visit.name,
        address=visit.console.address_of(visit.request),
        choice={name: value for name, value in fields.items() if value},
    )
    run = visit.console.redrives.begin(await (await visit.clients()).dead_letters(), asked)
    visit.result = f"redrive {run.id} began"
    return visit.go(address("dead-letters", group, "redrives", run.id))


async def progress(visit: RequestContext) -> Response:
    run = _run(visit)
    table = Table[Outcome](
        run.outcomes,
        visit.query,
        columns={"number": lambda each: 0, "fate": lambda each: each.fate.value},
        sort="number",  # in the order in which they were sent
        text=lambda each: " ".join((each.message_id, each.keys, each.fate.value, each.error, each.destination)),
    )
    return visit.show(
        "redrive_run.html", run=run, table=table, fates=Fate, most=MOST_OUTCOMES, link=place_link, state=_state(run)
    )


async def stop(visit: RequestContext) -> Response:
    run = _run(visit)
    at = address("dead-letters", run.group, "redrives", run.id)
    if run.ended_ms is not None:
        raise UsageError(f"redrive {run.id} had ended before: {run.said}")
    run.is_stopped = True
    return visit.done(f"Redrive {run.id} ends after the message it is at.", at)


def order_of(fields: Mapping[str, str]) -> RedriveOrder:
    """Return how to redrive, as a form says. Raises `UsageError`."""
    to, most, rate = fields["to"] or "group", fields["most"], fields["rate"]
    if to not in ("group", "origin", "topic"):
        raise UsageError(f"to={to[:20]!r}: copies go to the group, to their origin, or to a topic")
    if to == "topic" and not fields["to_topic"]:
        raise UsageError("name the topic that the copies go to")
    if not most.isdecimal() or len(most) > 9 or not 1 <= int(most) <= MOST_OUTCOMES:
        raise UsageError(f"at most {most[:20]!r} messages: 1 to {MOST_OUTCOMES:,} are sent in one redrive")
    try:
        per_second = float(rate) if rate else None
    except ValueError:
        raise UsageError(f"rate {rate[:20]!r} is no number of messages a second") from None
    if per_second is not None and not 0.1 <= per_second <= 100_000:
        raise UsageError(f"rate {rate[:20]}: 0.1 to 100,000 messages a second")
    return RedriveOrder(
        to_origin=to == "origin",
        to_topic=fields["to_topic"] if to == "topic" else None,
        most=int(most),
        per_second=per_second,
        again=bool(fields["again"]),
    )


def place_link(place: tuple[MessageQueue, int]) -> str:
    """Return the address of the message at a queue's offset."""
    queue, offset = place
    return address("message", queue.topic, queue.broker_name, str(queue.queue_id), str(offset))


async def _try(
    visit: RequestContext, group: str, wanted: DeadLetterFilter, order: RedriveOrder, outcomes: list[Outcome]
) -> str:
    """Fill in outcomes; return why it ended before the last: `enough`, `time`, or "" where it did not."""
    client = await (await visit.clients()).dead_letters()
    try:
        async with (
            asyncio.timeout(visit.console.config.search_seconds),
            aclosing(client.redrive(group, wanted, order)) as found,
        ):
            async for each in found:
                if len(outcomes) == MOST_TRIED:
                    return "enough"
                outcomes.append(Outcome.of(each))
    except TimeoutError:
        return "time"
    return ""


def _run(visit: RequestContext) -> Run:
    run = visit.console.redrives.find(visit.path["run"])
    if run is None or run.group != visit.path["group"]:
        raise QueryNotFound(
            f"redrive {visit.path['run'][:40]} is not known: the console was started since, or it is too long ago; "
            "the audit log has it"
        )
    return run


def _state(run: Run) -> tuple[str, str]:
    """Return a badge's kind and text: green only where everything was sent."""
    if run.ended_ms is None:
        return "warn", "stopping" if run.is_stopped else "under way"
    if run.error:
        return "bad", "ended before its time"
    if run.fates[Fate.FAILED]:
        return "bad", "ended, with failures"
    return ("good", "done") if run.fates[Fate.SENT] else ("", "nothing was to send")


ROUTES = [
    view("/dead-letters/{group}/redrive", dry_run, needs=Role.OPERATOR),
    change("/dead-letters/{group}/redrive", redrive, needs=Role.OPERATOR, what="begin redrive"),
    view("/dead-letters/{group}/redrives/{run}", progress),
    change("/dead-letters/{group}/redrives/{run}/stop", stop, needs=Role.OPERATOR, what="stop redrive"),
]
