"""What nobody has decided on: half messages and batches; what is in a half message, committing it, rolling it back."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from starlette.responses import Response

from pyromq.client.admin.messages.undecided_transactions import AsyncHalfMessages, HalfMessage
from pyromq.client.decision import Decision
from pyromq.console.pages.batches import undecided_batches
from pyromq.console.search.bodies import BodyView
from pyromq.console.security.accounts import Role
from pyromq.console.view.request_context import RequestContext, or_error
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.errors import MQError, UsageError

MOST_LISTED = 2000  # of one question; more are counted as more
DONE = {Decision.COMMIT: "committed: consumers see it", Decision.ROLLBACK: "rolled back: nobody will see it"}


async def transactions(visit: RequestContext) -> Response:
    clients = await visit.clients()
    group, topic = visit.query.get("group", "").strip(), visit.query.get("topic", "").strip()
    halves = await clients.half_messages()
    found, batches = await asyncio.gather(
        or_error(_undecided(halves, group or None, topic or None)), or_error(undecided_batches(clients))
    )
    half_messages, is_cut = ([], False) if isinstance(found, MQError) else found
    table = Table[HalfMessage](
        half_messages,
        visit.query,
        columns={
            "sent": lambda each: each.born_ms,
            "group": lambda each: (each.producer_group, each.born_ms),
            "topic": lambda each: (each.topic or "", each.born_ms),
            "checks": lambda each: (each.checks, each.born_ms),
        },
        sort="sent",
        text=lambda each: " ".join((each.message_id, each.producer_group, each.topic or "", *each.keys)),
    )
    return visit.show(
        "transactions.html",
        table=table,
        is_cut=is_cut,
        error=found if isinstance(found, MQError) else None,
        batches=[] if isinstance(batches, MQError) else batches,
        batch_error=batches if isinstance(batches, MQError) else None,
        group=group,
        topic=topic,
        now_ms=visit.console.clock.now_ms(),
        snapshot=await clients.snapshot(),
    )


async def transaction(visit: RequestContext) -> Response:
    client = await (await visit.clients()).half_messages()
    half = await _find(visit, client)
    body, error = None, None
    try:
        body = await asyncio.to_thread(BodyView, await client.content(half))
    except MQError as failed:
        error = failed
    return visit.show("transaction.html", half=half, body=body, error=error, now_ms=visit.console.clock.now_ms())


async def decide(visit: RequestContext) -> Response:
    wanted = {"commit": Decision.COMMIT, "rollback": Decision.ROLLBACK}.get(visit.form.get("decision", ""))
    if wanted is None:
        raise UsageError("nothing was decided: say commit or rollback")
    client = await (await visit.clients()).half_messages()
    half = await _find(visit, client)
    await client.decide(half, wanted)
    return visit.done(f"Half message {half.message_id} is {DONE[wanted]}.", "/transactions")


async def _undecided(client: AsyncHalfMessages, group: str | None, topic: str | None) -> tuple[list[HalfMessage], bool]:
    """Return what is undecided, and whether there is more."""
    found: list[HalfMessage] = []
    async with aclosing(client.undecided(group, topic)) as undecided:
        async for half in undecided:
            if len(found) == MOST_LISTED:
                return found, True
            found.append(half)
    return found, False


async def _find(visit: RequestContext, client: AsyncHalfMessages) -> HalfMessage:
    try:
        async with asyncio.timeout(visit.console.config.search_seconds):
            return await client.find(visit.path["id"])
    except TimeoutError:
        raise UsageError(
            f"half message {visit.path['id'][:60]} was not found among the oldest that could be read in "
            f"{visit.console.config.search_seconds:g} s"
        ) from None


ROUTES = [
    view("/transactions", transactions),
    view("/transactions/{id}", transaction),
    change("/transactions/{id}", decide, needs=Role.OPERATOR, what="decide transaction"),
]
