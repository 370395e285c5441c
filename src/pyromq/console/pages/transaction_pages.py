"""Pages of undecided transactions (half messages and batch transactions), which can be committed or rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response

from pyromq.client.admin.messages.undecided_transactions import AsyncHalfMessages, HalfMessage
from pyromq.client.client_hooks import Decision
from pyromq.client.producer.batch_transactions import AsyncBatchTransactions, AttemptResult, UndecidedAttempts
from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.search.bodies import BodyView
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.request_context import RequestContext, or_error
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.errors import BatchDecided, MQError, QueryNotFound, UsageError
from pyromq.plural import counted

MAX_LISTED = 2000  # limit of half messages listed in one request; the page says if there are more
DONE = {Decision.COMMIT: "committed: consumers see it", Decision.ROLLBACK: "rolled back: nobody will see it"}


async def transactions(context: RequestContext) -> Response:
    clients = context.clients()
    group, topic = context.query.get("group", "").strip(), context.query.get("topic", "").strip()
    halves = await clients.half_messages()
    found, batches = await asyncio.gather(
        or_error(_undecided(halves, group or None, topic or None)), or_error(undecided_batches(clients))
    )
    half_messages, is_cut = ([], False) if isinstance(found, MQError) else found
    table = Table[HalfMessage](
        half_messages,
        context.query,
        columns={
            "sent": lambda each: each.born_ms,
            "group": lambda each: (each.producer_group, each.born_ms),
            "topic": lambda each: (each.topic or "", each.born_ms),
            "checks": lambda each: (each.checks, each.born_ms),
        },
        sort="sent",
        text=lambda each: " ".join((each.message_id, each.producer_group, each.topic or "", *each.keys)),
    )
    return context.show(
        "transactions.html",
        table=table,
        is_cut=is_cut,
        error=found if isinstance(found, MQError) else None,
        batches=[] if isinstance(batches, MQError) else batches,
        batch_error=batches if isinstance(batches, MQError) else None,
        group=group,
        topic=topic,
        now_ms=context.console.clock.now_ms(),
        snapshot=await clients.snapshot(),
    )


async def transaction(context: RequestContext) -> Response:
    client = await context.clients().half_messages()
    half = await _find(context, client)
    body, error = None, None
    try:
        body = await asyncio.to_thread(BodyView, await client.content(half))
    except MQError as failed:
        error = failed
    return context.show("transaction.html", half=half, body=body, error=error, now_ms=context.console.clock.now_ms())


async def decide(context: RequestContext) -> Response:
    wanted = {"commit": Decision.COMMIT, "rollback": Decision.ROLLBACK}.get(context.form.get("decision", ""))
    if wanted is None:
        raise UsageError("nothing was decided: choose commit or rollback")
    client = await context.clients().half_messages()
    half = await _find(context, client)
    await client.decide(half, wanted)
    return context.done(f"Half message {half.message_id} is {DONE[wanted]}.", "/transactions")


async def _undecided(client: AsyncHalfMessages, group: str | None, topic: str | None) -> tuple[list[HalfMessage], bool]:
    """Return the undecided half messages, and whether there are more than listed."""
    found: list[HalfMessage] = []
    async with aclosing(client.undecided(group, topic)) as undecided:
        async for half in undecided:
            if len(found) == MAX_LISTED:
                return found, True
            found.append(half)
    return found, False


async def _find(context: RequestContext, client: AsyncHalfMessages) -> HalfMessage:
    try:
        async with asyncio.timeout(context.console.config.search_seconds):
            return await client.find(context.path["id"])
    except TimeoutError:
        raise UsageError(
            f"half message {context.path['id'][:60]} was not found among the oldest that could be read in "
            f"{context.console.config.search_seconds:g} s"
        ) from None


@dataclass(frozen=True, slots=True)
class UndecidedBatchView:
    """An undecided batch transaction over all brokers.

    Each attempt has its number of messages at each broker. `ledger` is the broker that decides the transaction.
    """

    transaction: str
    ledger: str
    attempts: list[AttemptResult]
    silent_seconds: float

    @property
    def messages(self) -> int:
        return sum(sum(attempt.messages.values()) for attempt in self.attempts)


async def undecided_batches(clients: ClusterClients) -> list[UndecidedBatchView]:
    """Return the undecided batch transactions; the one that was silent longest comes first."""
    return _joined(await (await clients.batches()).undecided())


async def batch(context: RequestContext) -> Response:
    clients = context.clients()
    return context.show("batch.html", batch=await _find_batch(clients, context.query.get("name", "")))


async def decide_batch(context: RequestContext) -> Response:
    """Commit the selected attempts of a transaction, or roll back all attempts.

    Nothing is decided if messages arrived since the page was shown.
    """
    name, decision = context.form.get("name", ""), context.form.get("decision", "")
    if decision not in ("commit", "rollback"):
        raise UsageError("nothing was decided: choose commit or rollback")
    clients = context.clients()
    found = await _find_batch(clients, name)
    if context.form.get("seen") != str(found.messages):
        raise UsageError(
            f"nothing was decided: brokers now hold {counted(found.messages, 'message')} of {name!r}, other ones than"
            " the page showed, because a program is still sending; load the page again"
        )
    ticked = {value for field, value in context.form.items() if field.startswith("token")}
    winners = [each for each in found.attempts if each.token in ticked]
    async with clients.ledger(found.ledger) as batches:
        text = await (_commit(batches, found, winners) if decision == "commit" else _roll_back(batches, found))
    return context.done(text, "/transactions")


async def _find_batch(clients: ClusterClients, name: str) -> UndecidedBatchView:
    held = await (await clients.batches()).undecided(name) if name else []
    if not held:
        raise QueryNotFound(
            f"batch transaction {name[:60]!r} is not undecided: it is decided, has timed out, or is unknown"
        )
    return _joined(held)[0]


def _joined(held: Sequence[UndecidedAttempts]) -> list[UndecidedBatchView]:
    """Return the undecided batch transactions of all brokers, with the attempts of one transaction joined."""
    batches = []
    for name in {each.transaction: None for each in held}:
        parts = [each for each in held if each.transaction == name]
        tokens: dict[str, dict[str, int]] = {}
        for part in parts:
            for token, messages in part.messages.items():
                tokens.setdefault(token, {})[part.broker_name] = messages
        attempts = [AttemptResult(name, token, messages) for token, messages in tokens.items()]
        batches.append(UndecidedBatchView(name, parts[0].ledger, attempts, min(part.silent_seconds for part in parts)))
    return sorted(batches, key=lambda each: -each.silent_seconds)


async def _commit(batches: AsyncBatchTransactions, found: UndecidedBatchView, winners: list[AttemptResult]) -> str:
    if not winners:
        raise UsageError("nothing was decided: select the attempts to commit, or roll back")
    outcome = await batches.commit(found.transaction, winners)
    what = f"Batch transaction {found.transaction}"
    messages = counted(outcome.messages, "message")
    if outcome.by_this:
        return f"{what} is committed: consumers see its {messages}."
    return f"{what} was decided before, with {messages}: that decision holds, and now every broker has it."


async def _roll_back(batches: AsyncBatchTransactions, found: UndecidedBatchView) -> str:
    """Roll back a batch transaction.

    Messages of a transaction that another broker's ledger has decided stay until the decision arrives.
    """
    if await batches.lookup(found.transaction) is not None:
        raise BatchDecided(
            f"batch transaction {found.transaction!r} is decided at broker {found.ledger}, and other brokers do"
            " not have the decision yet: commit any attempt to send them the decision"
        )
    await batches.rollback(found.transaction, found.attempts)
    messages = counted(found.messages, "message")
    return f"Batch transaction {found.transaction} is rolled back: consumers do not see its {messages}."


ROUTES = [
    view("/transactions", transactions),
    view("/transactions/{id}", transaction),
    change("/transactions/{id}", decide, needs=Role.OPERATOR, what="decide transaction"),
    view("/transactions-batch", batch),
    change("/transactions-batch", decide_batch, needs=Role.OPERATOR, what="decide batch transaction"),
]
