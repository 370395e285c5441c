"""Runs of half messages: what attempts at batch transactions have sent, of which nothing is decided yet.

A run is one record of the half runs' topic, whose body is a batch as producers send it: so a message costs nothing
of its own before it is decided on. Its properties say for whom and where to:

    TRAN_NAME, TRAN_TOKEN, TRAN_RUN    the transaction, the attempt, the number of the run in the attempt
    TRAN_COUNT                         how many messages it holds
    TRAN_LEDGER                        the broker that decides, where it is not this one
    REAL_TOPIC, REAL_QID, PGROUP       as for other half messages

A run that comes again, because its sender got no answer, is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import BatchIncomplete
from pyromq.message import Property, StoredMessage
from pyromq.plural import counted
from pyromq.remoting.bodies import BatchAttempt, UndecidedBatch

NAME, TOKEN, NUMBER, COUNT, DECIDER = "TRAN_NAME", "TRAN_TOKEN", "TRAN_RUN", "TRAN_COUNT", "TRAN_LEDGER"
# How long a run waits for a decision that another broker makes: as long as upstream waits for any producer.
ELSEWHERE_MS = 72 * 3_600_000


class Run(NamedTuple):
    """Where a run lies, and what it belongs to."""

    queue_offset: int
    log_offset: int
    transaction: str
    token: str
    number: int
    messages: int
    ledger: str | None  # the broker that decides, where it is another one


@dataclass(slots=True)
class _Undecided:
    """The attempts at one transaction: token -> number -> run."""

    touched: float  # monotonic seconds of the last run
    ledger: str | None  # where another broker is
    attempts: dict[str, dict[int, Run]] = field(default_factory=dict)


class HalfRuns:
    """The undecided runs of one broker, by transaction."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, _Undecided] = {}

    def __len__(self) -> int:
        return len(self._open)

    def has(self, transaction: str, token: str, number: int) -> bool:
        undecided = self._open.get(transaction)
        return undecided is not None and number in undecided.attempts.get(token, ())

    def add(self, run: Run, *, age_seconds: float = 0.0) -> None:
        """Take up a run that is in the log; `age_seconds` is how long it has been there."""
        touched = self._clock.monotonic() - age_seconds
        undecided = self._open.setdefault(run.transaction, _Undecided(touched, run.ledger))
        undecided.touched = max(undecided.touched, touched)
        undecided.ledger = undecided.ledger or run.ledger
        undecided.attempts.setdefault(run.token, {}).setdefault(run.number, run)

    def check_complete(self, transaction: str, attempts: list[BatchAttempt]) -> None:
        """Raise `BatchIncomplete` unless exactly these numbers of messages are here."""
        undecided = self._open.get(transaction)
        for attempt in attempts:
            runs = undecided.attempts.get(attempt.token, {}) if undecided is not None else {}
            held = _count(runs.values())
            if held != attempt.messages:
                raise BatchIncomplete(
                    f"transaction {transaction!r}: attempt {attempt.token!r} has {counted(held, 'message')} here, not"
                    f" the {attempt.messages} to be committed; it was rolled back, maybe after batchTransactionTimeOut,"
                    " or was never whole. Send the batch again as a new attempt"
                )

    def settle(self, transaction: str, winners: Iterable[str]) -> list[Run]:
        """Forget all attempts at a transaction; return the runs of those that won, in order of arrival."""
        undecided = self._open.pop(transaction, None)
        if undecided is None:
            return []
        runs = [run for token in winners for run in undecided.attempts.get(token, {}).values()]
        return sorted(runs, key=lambda run: run.queue_offset)

    def drop(self, transaction: str, tokens: Iterable[str]) -> list[str]:
        """Forget attempts; return which of them there were."""
        undecided = self._open.get(transaction)
        if undecided is None:
            return []
        dropped = [token for token in tokens if undecided.attempts.pop(token, None) is not None]
        if not undecided.attempts:
            del self._open[transaction]
        return dropped

    def silent(self, timeout_ms: int) -> list[tuple[str, list[str]]]:
        """Return transactions without news for so long, with the tokens of their attempts."""
        now = self._clock.monotonic()
        return [
            (transaction, list(undecided.attempts))
            for transaction, undecided in self._open.items()
            if (now - undecided.touched) * 1000 > (timeout_ms if undecided.ledger is None else ELSEWHERE_MS)
        ]

    def listed(self, most: int, transaction: str | None = None) -> list[UndecidedBatch]:
        """Return the oldest undecided transactions, or the one of a name, as administrators are told of them."""
        now = self._clock.monotonic()
        found = [(transaction, self._open.get(transaction))] if transaction is not None else self._open.items()
        return [
            UndecidedBatch(
                name,
                [BatchAttempt(token, _count(runs.values())) for token, runs in undecided.attempts.items()],
                round((now - undecided.touched) * 1000),
                undecided.ledger,
            )
            for name, undecided in islice(found, most)
            if undecided is not None
        ]

    def first_needed(self, end: int) -> int:
        """Return the queue offset of the oldest run that is kept; `end` without any."""
        firsts = (
            next(iter(runs.values())).queue_offset
            for undecided in self._open.values()
            for runs in undecided.attempts.values()
        )
        return min(firsts, default=end)


def _count(runs: Iterable[Run]) -> int:
    return sum(run.messages for run in runs)


def run_of(queue_offset: int, log_offset: int, properties: dict[str, str]) -> Run | None:
    """Return the run that a record of the topic holds; None for one whose properties say none."""
    if not {NAME, TOKEN, Property.REAL_TOPIC} <= properties.keys():
        return None
    numbers = [properties.get(name, "") for name in (NUMBER, COUNT, Property.REAL_QUEUE_ID)]
    if not all(number.isdecimal() for number in numbers):
        return None
    return Run(
        queue_offset,
        log_offset,
        properties[NAME],
        properties[TOKEN],
        int(numbers[0]),
        int(numbers[1]),
        properties.get(DECIDER),
    )


def run_properties(run: Run, message: StoredMessage, *, group: str) -> dict[str, str]:
    """Return the properties that `run_of` reads."""
    properties = {
        NAME: run.transaction,
        TOKEN: run.token,
        NUMBER: str(run.number),
        COUNT: str(run.messages),
        Property.REAL_TOPIC: message.topic,
        Property.REAL_QUEUE_ID: str(message.queue_id),
        Property.PRODUCER_GROUP: group,
    }
    return properties | ({DECIDER: run.ledger} if run.ledger is not None else {})
