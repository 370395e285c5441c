"""Messages that wait for a time of their own: how many in which topic, what is due when, cancelling one."""

from __future__ import annotations

from contextlib import aclosing

from starlette.responses import Response

from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages, DelayedMessage
from pyromq.console.search.query import moment
from pyromq.console.security.accounts import Role
from pyromq.console.view.columns import columns
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.console.view.visit import Visit, address
from pyromq.errors import UsageError

PAGE = 50
MOST_DRAWN = 2000  # messages in the chart, next ones first: four answers of a broker


async def delayed(visit: Visit) -> Response:
    clients = await visit.clients()
    counts = await (await clients.delayed()).counts()
    table = Table[tuple[str, int]](
        list(counts.items()),
        visit.query,
        columns={"topic": lambda each: each[0].casefold(), "waiting": lambda each: (each[1], each[0])},
        sort="topic",
        text=lambda each: each[0],
    )
    return visit.show("delayed.html", table=table, total=sum(counts.values()), snapshot=await clients.snapshot())


async def of_topic(visit: Visit) -> Response:
    """What is due next, from a time on; `begin` and `skip` are where an earlier page ended."""
    topic = visit.path["topic"]
    clients = await visit.clients()
    client = await clients.delayed()
    begin_ms = moment(visit.query.get("begin", "")) or 0
    skip = visit.query.get("skip", "")
    skipped = int(skip) if skip.isdecimal() and len(skip) < 6 else 0
    found = await _waiting(client, topic, begin_ms, most=skipped + MOST_DRAWN + 1)
    is_cut, found = len(found) > skipped + MOST_DRAWN, found[skipped : skipped + MOST_DRAWN]
    rows = found[:PAGE]
    next_link = ""
    if len(found) > PAGE:
        due = rows[-1].due_ms
        same = sum(each.due_ms == due for each in rows) + (skipped if due == begin_ms else 0)
        next_link = address("delayed", topic, begin=due, skip=same)
    return visit.show(
        "delayed_of_topic.html",
        topic=topic,
        total=(await client.counts()).get(topic, 0),
        rows=rows,
        drawn=len(found),
        is_cut=is_cut,
        chart_of_due=columns("Messages due", [each.due_ms for each in found]),
        begin=visit.query.get("begin", ""),
        next_link=next_link,
        now_ms=visit.console.clock.now_ms(),
        snapshot=await clients.snapshot(),
    )


async def cancel(visit: Visit) -> Response:
    handle = visit.form.get("recall_handle", "")
    if not handle:
        raise UsageError("nothing was cancelled: the message has no handle")
    message_id = await (await (await visit.clients()).delayed()).cancel(handle)
    return visit.done(f"Message {message_id} is cancelled: it is not delivered.", visit.back("/delayed"))


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
    change("/delayed/{topic}/cancel", cancel, needs=Role.OPERATOR, what="cancel delayed message"),
]
