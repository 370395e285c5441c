"""Pages of delayed messages: scheduled messages, which can be cancelled, and messages of delay levels.

The pages show the number of messages per topic or level, and the next delivery times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response

from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages, DelayedMessage, DelayLevel
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.chart import columns
from pyromq.console.view.request_context import RequestContext, address, or_error
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.console.view.texts import duration
from pyromq.errors import MQError, UsageError

PAGE = 50
MAX_DRAWN = 2000  # limit of messages in the chart, in order of delivery time: four responses of a broker


async def delayed(context: RequestContext) -> Response:
    clients = context.clients()
    client, admin = await clients.delayed(), await clients.admin()
    counted, levels = await asyncio.gather(or_error(client.counts()), or_error(admin.delay_levels.all()))
    counts = {} if isinstance(counted, MQError) else counted
    lines = [] if isinstance(levels, MQError) else _added_up(levels)
    table = Table[tuple[str, int]](
        list(counts.items()),
        context.query,
        columns={"topic": lambda each: each[0].casefold(), "waiting": lambda each: (each[1], each[0])},
        sort="topic",
        text=lambda each: each[0],
    )
    return context.show(
        "delayed.html",
        table=table,
        total=sum(counts.values()),
        error=counted if isinstance(counted, MQError) else None,
        lines=[each for each in lines if each.waiting],
        empty=sum(not each.waiting for each in lines),
        level_error=levels if isinstance(levels, MQError) else None,
        now_ms=context.console.clock.now_ms(),
        snapshot=await clients.snapshot(),
    )


async def of_level(context: RequestContext) -> Response:
    """Show the next delayed messages of one delay level."""
    text = context.path["level"]
    if not text.isdecimal() or len(text) > 4:
        raise UsageError(f"delay level {text[:20]!r} is not a whole number")
    clients = context.clients()
    levels = (await clients.admin()).delay_levels
    lines = _added_up([each for each in await levels.all() if each.level == int(text)])
    if not lines:
        raise UsageError(f"no broker has delay level {text}")
    return context.show(
        "delay_level.html",
        line=lines[0],
        rows=await levels.waiting(int(text), PAGE),
        now_ms=context.console.clock.now_ms(),
        snapshot=await clients.snapshot(),
    )


async def of_topic(context: RequestContext) -> Response:
    """Show the next scheduled messages of a topic from a time on. `begin` and `skip` continue an earlier page."""
    topic = context.path["topic"]
    clients = context.clients()
    client = await clients.delayed()
    begin_ms, error = 0, None
    try:
        begin_ms = context.time("begin") or 0
    except UsageError as wrong:  # shown beside the form, which keeps what was typed
        error = wrong
    skip = context.query.get("skip", "")
    skipped = int(skip) if skip.isdecimal() and len(skip) < 6 else 0
    found = await _waiting(client, topic, begin_ms, most=skipped + MAX_DRAWN + 1)
    is_cut, found = len(found) > skipped + MAX_DRAWN, found[skipped : skipped + MAX_DRAWN]
    rows = found[:PAGE]
    next_link = ""
    if len(found) > PAGE:
        due = rows[-1].due_ms
        same = sum(each.due_ms == due for each in rows) + (skipped if due == begin_ms else 0)
        next_link = address("delayed", topic, begin=due, skip=same)
    return context.show(
        "delayed_of_topic.html",
        status=400 if error else 200,
        error=error,
        topic=topic,
        total=(await client.counts()).get(topic, 0),
        rows=rows,
        drawn=len(found),
        is_cut=is_cut,
        chart_of_due=columns("Messages due", [each.due_ms for each in found]),
        begin=context.query.get("begin", ""),
        next_link=next_link,
        now_ms=context.console.clock.now_ms(),
        snapshot=await clients.snapshot(),
    )


async def cancel(context: RequestContext) -> Response:
    handle = context.form.get("recall_handle", "")
    if not handle:
        raise UsageError("nothing was cancelled: the form has no recall handle; open the message's page again")
    message_id = await (await context.clients().delayed()).cancel(handle)
    return context.done(f"Message {message_id} is cancelled: it is not delivered.", context.back("/delayed"))


@dataclass(frozen=True, slots=True)
class _LevelLine:
    """A delay level over all brokers. `delay` is a string, which lists several delays if brokers differ."""

    level: int
    delay: str
    waiting: int
    next_due_ms: int | None


def _added_up(levels: Sequence[DelayLevel]) -> list[_LevelLine]:
    lines = []
    for level in sorted({each.level for each in levels}):
        of_brokers = [each for each in levels if each.level == level]
        delays = sorted({each.delay_ms for each in of_brokers})
        dues = [each.next_due_ms for each in of_brokers if each.next_due_ms is not None]
        delay = " or ".join(duration(each / 1000) for each in delays)
        lines.append(_LevelLine(level, delay, sum(each.waiting for each in of_brokers), min(dues, default=None)))
    return lines


async def _waiting(client: AsyncDelayedMessages, topic: str, begin_ms: int, *, most: int) -> list[DelayedMessage]:
    found: list[DelayedMessage] = []
    async with aclosing(client.waiting(topic, begin_ms=begin_ms)) as waiting:
        async for each in waiting:
            found.append(each)
            if len(found) == most:
                break
    return found


ROUTES = [
    view("/delayed", delayed),
    view("/delayed/{topic}", of_topic),
    view("/delayed-levels/{level}", of_level),
    change("/delayed/{topic}/cancel", cancel, needs=Role.OPERATOR, what="cancel delayed message"),
]
