"""Batch transactions that nobody has decided on: who sent how much of one, and deciding for the machine that should.

The list of them is on the page of transactions. Only who sent an attempt knows whether it is whole, so nothing is
decided on but what the page had shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from pyromq.client.producer.batch_transactions import AsyncBatchTransactions, AttemptResult, UndecidedAttempts
from pyromq.console.cluster.clients import Clients
from pyromq.console.security.accounts import Role
from pyromq.console.view.request_context import RequestContext
from pyromq.console.view.routing import change, view
from pyromq.errors import BatchDecided, QueryNotFound, UsageError
from pyromq.plural import counted


@dataclass(frozen=True, slots=True)
class UndecidedBatch:
    """A transaction as all brokers hold it: its attempts, the messages of each by broker, and who decides on it."""

    transaction: str
    ledger: str
    attempts: list[AttemptResult]
    silent_seconds: float

    @property
    def messages(self) -> int:
        return sum(sum(attempt.messages.values()) for attempt in self.attempts)


async def undecided_batches(clients: Clients) -> list[UndecidedBatch]:
    """Return what nobody has decided on: those that are silent longest first."""
    return _joined(await (await clients.batches()).undecided())


async def batch(visit: RequestContext) -> Response:
    clients = await visit.clients()
    return visit.show("batch.html", batch=await _find(clients, visit.query.get("name", "")))


async def decide(visit: RequestContext) -> Response:
    """Commit the attempts that are ticked, or roll back all; nothing, if more has come since the page was shown."""
    name, decision = visit.form.get("name", ""), visit.form.get("decision", "")
    if decision not in ("commit", "rollback"):
        raise UsageError("nothing was decided: say commit or rollback")
    clients = await visit.clients()
    found = await _find(clients, name)
    if visit.form.get("seen") != str(found.messages):
        raise UsageError(
            f"nothing was decided: brokers hold {counted(found.messages, 'message')} of {name!r} by now, not those that"
            " the page had shown; somebody is still sending. Look again"
        )
    ticked = {value for field, value in visit.form.items() if field.startswith("token")}
    winners = [each for each in found.attempts if each.token in ticked]
    async with clients.ledger(found.ledger) as batches:
        text = await (_commit(batches, found, winners) if decision == "commit" else _roll_back(batches, found))
    return visit.done(text, "/transactions")


async def _find(clients: Clients, name: str) -> UndecidedBatch:
    held = await (await clients.batches()).undecided(name) if name else []
    if not held:
        raise QueryNotFound(f"no undecided batch is called {name[:60]!r}: it is decided, timed out, or unknown")
    return _joined(held)[0]


def _joined(held: Sequence[UndecidedAttempts]) -> list[UndecidedBatch]:
    """Return what brokers hold, added up by transaction."""
    batches = []
    for name in {each.transaction: None for each in held}:
        parts = [each for each in held if each.transaction == name]
        tokens: dict[str, dict[str, int]] = {}
        for part in parts:
            for token, messages in part.messages.items():
                tokens.setdefault(token, {})[part.broker_name] = messages
        attempts = [AttemptResult(name, token, messages) for token, messages in tokens.items()]
        batches.append(UndecidedBatch(name, parts[0].ledger, attempts, min(part.silent_seconds for part in parts)))
    return sorted(batches, key=lambda each: -each.silent_seconds)


async def _commit(batches: AsyncBatchTransactions, found: UndecidedBatch, winners: list[AttemptResult]) -> str:
    if not winners:
        raise UsageError("nothing was decided: tick the attempts that count, or roll back")
    outcome = await batches.commit(found.transaction, winners)
    what = f"Batch transaction {found.transaction}"
    messages = counted(outcome.messages, "message")
    if outcome.by_this:
        return f"{what} is committed: consumers see its {messages}."
    return f"{what} had been decided before, for {messages}: that counts, and every broker knows it now."


async def _roll_back(batches: AsyncBatchTransactions, found: UndecidedBatch) -> str:
    """What another broker's ledger has decided must not be forgotten at those that were not told yet."""
    if await batches.lookup(found.transaction) is not None:
        raise BatchDecided(
            f"batch transaction {found.transaction!r} is decided at broker {found.ledger}, and brokers that were not"
            " told yet still hold it: a commit of any attempt finishes that"
        )
    await batches.rollback(found.transaction, found.attempts)
    messages = counted(found.messages, "message")
    return f"Batch transaction {found.transaction} is rolled back: nobody will see its {messages}."


ROUTES = [
    view("/transactions-batch", batch),
    change("/transactions-batch", decide, needs=Role.OPERATOR, what="decide batch transaction"),
]
