"""Runs of half messages: what attempts at batch transactions have sent, of which nothing is decided yet.

A run is one record of the half runs' topic, whose body is a batch as producers send it: so a message costs nothing
of its own before it is decided on. Its properties say for whom and where to:

    TRAN_NAME, TRAN_TOKEN, TRAN_RUN    the transaction, the attempt, the number of the run in the attempt
    TRAN_COUNT                         how many messages it holds
    TRAN_LEDGER                        the broker that decides, where it is not this one
    TRAN_ACCOUNT                       the account that began the transaction, where permissions are on
    REAL_TOPIC, REAL_QID, PGROUP       as for other half messages

A run that comes again, because its sender got no answer, is stored once. A run without messages tells the broker that
decides of an attempt whose messages for this topic are all at other brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pyromq.broker.batches.holders import Holders
from pyromq.clock import Clock
from pyromq.errors import BatchIncomplete
from pyromq.message import Property, StoredMessage
from pyromq.permissions.account import PUB, Need
from pyromq.plural import counted
from pyromq.remoting.bodies import BatchAttempt, UndecidedBatch

NAME, TOKEN, NUMBER, COUNT, DECIDER = "TRAN_NAME", "TRAN_TOKEN", "TRAN_RUN", "TRAN_COUNT", "TRAN_LEDGER"
ACCOUNT = "TRAN_ACCOUNT"
# How long a run waits for a decision that another broker makes: as long as upstream waits for any producer.
ELSEWHERE_MS = 72 * 3_600_000


class HalfBatch(NamedTuple):
    """Where a run lies, and what it belongs to."""

    queue_offset: int
    log_offset: int
    transaction: str
    token: str
    number: int
    messages: int
    ledger: str | None  # the broker that decides, where it is another one


class BatchOrigin(NamedTuple):
    """For which topic a run is, and who has sent it: its account, and the holder that it counts for."""

    topic: str
    account: str | None = None
    holder: str = ""


@dataclass(slots=True)
class _Attempt:
    """The runs of one attempt by number, and the holder that they count for."""

    holder: str
    runs: dict[int, HalfBatch] = field(default_factory=dict)


@dataclass(slots=True)
class Undecided:
    """The attempts at one transaction by token, the account that began it, and the topics of all its runs."""

    touched: float  # monotonic seconds of the last run
    ledger: str | None  # where another broker is
    owner: str | None
    topics: set[str] = field(default_factory=set)
    attempts: dict[str, _Attempt] = field(default_factory=dict)


class HalfBatches:
    """The undecided runs of one broker, by transaction; at most `most`, but for those that were there at the start."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._holders = Holders("undecided runs of batch transactions", "maxUndecidedRuns", most)
        self._open: dict[str, Undecided] = {}

    def __len__(self) -> int:
        return len(self._open)

    def has(self, transaction: str, token: str, number: int) -> bool:
        undecided = self._open.get(transaction)
        attempt = None if undecided is None else undecided.attempts.get(token)
        return attempt is not None and number in attempt.runs

    def find(self, transaction: str) -> Undecided | None:
        return self._open.get(transaction)

    def names(self) -> list[str]:
        """Return the names of the transactions, oldest first."""
        return list(self._open)

    def check_room(self, holder: str) -> None:
        """Raise `LimitReached` unless a holder may have one more run."""
        self._holders.check(holder)

    def add(self, run: HalfBatch, origin: BatchOrigin, *, age_seconds: float = 0.0) -> None:
        """Take up a run that is in the log; `age_seconds` is how long it has been there."""
        touched = self._clock.monotonic() - age_seconds
        undecided = self._open.setdefault(run.transaction, Undecided(touched, run.ledger, origin.account))
        undecided.touched = max(undecided.touched, touched)
        undecided.ledger = undecided.ledger or run.ledger
        undecided.topics.add(origin.topic)
        attempt = undecided.attempts.setdefault(run.token, _Attempt(origin.holder))
        if run.number not in attempt.runs:
            attempt.runs[run.number] = run
            self._holders.add(attempt.holder)

    def check_complete(self, transaction: str, attempts: list[BatchAttempt]) -> None:
        """Raise `BatchIncomplete` unless exactly these numbers of messages are here."""
        undecided = self._open.get(transaction)
        if undecided is None and not any(attempt.messages for attempt in attempts):
            raise BatchIncomplete(
                f"transaction {transaction!r} cannot be committed: this broker has no messages of it. None were sent,"
                " or all were rolled back. Send messages under this name first; a batch without any has no commit"
            )
        for attempt in attempts:
            found = undecided.attempts.get(attempt.token) if undecided is not None else None
            held = 0 if found is None else _count(found)
            if held != attempt.messages:
                raise BatchIncomplete(
                    f"transaction {transaction!r}: attempt {attempt.token!r} has {counted(held, 'message')} here, not"
                    f" the {attempt.messages} to be committed; it was rolled back, maybe after batchTransactionTimeOut,"
                    " or was never whole. Send the batch again as a new attempt"
                )

    def settle(self, transaction: str, winners: Iterable[str]) -> list[HalfBatch]:
        """Forget all attempts at a transaction; return the runs of those that won, in order of arrival.

        Runs without messages are left out.
        """
        undecided = self._open.pop(transaction, None)
        if undecided is None:
            return []
        won = [attempt for token in winners if (attempt := undecided.attempts.get(token)) is not None]
        for attempt in undecided.attempts.values():
            self._holders.remove(attempt.holder, len(attempt.runs))
        runs = [run for attempt in won for run in attempt.runs.values() if run.messages]
        return sorted(runs, key=lambda run: run.queue_offset)

    def drop(self, transaction: str, tokens: Iterable[str]) -> list[str]:
        """Forget attempts; return which of them there were."""
        undecided = self._open.get(transaction)
        if undecided is None:
            return []
        dropped = [token for token in tokens if token in undecided.attempts]
        for token in dropped:
            attempt = undecided.attempts.pop(token)
            self._holders.remove(attempt.holder, len(attempt.runs))
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

    def described(self, transaction: str) -> UndecidedBatch:
        """Return what there is of a transaction, as clients are told of it."""
        undecided = self._open[transaction]
        return UndecidedBatch(
            transaction,
            [BatchAttempt(token, _count(attempt)) for token, attempt in undecided.attempts.items()],
            round((self._clock.monotonic() - undecided.touched) * 1000),
            undecided.ledger,
        )

    def first_needed(self, end: int) -> int:
        """Return the queue offset of the oldest run that is kept; `end` without any."""
        firsts = (
            next(iter(attempt.runs.values())).queue_offset
            for undecided in self._open.values()
            for attempt in undecided.attempts.values()
        )
        return min(firsts, default=end)


def _count(attempt: _Attempt) -> int:
    return sum(run.messages for run in attempt.runs.values())


def run_of(queue_offset: int, log_offset: int, properties: dict[str, str]) -> HalfBatch | None:
    """Return the run that a record of the topic holds; None for one whose properties say none."""
    if not {NAME, TOKEN, Property.REAL_TOPIC} <= properties.keys():
        return None
    numbers = [properties.get(name, "") for name in (NUMBER, COUNT, Property.REAL_QUEUE_ID)]
    if not all(number.isdecimal() for number in numbers):
        return None
    return HalfBatch(
        queue_offset,
        log_offset,
        properties[NAME],
        properties[TOKEN],
        int(numbers[0]),
        int(numbers[1]),
        properties.get(DECIDER),
    )


def origin_of(properties: dict[str, str]) -> BatchOrigin:
    """Return where a run of the log came from. It counts for no holder: its connection has ended."""
    return BatchOrigin(properties[Property.REAL_TOPIC], properties.get(ACCOUNT))


def batch_needs(undecided: Undecided) -> list[Need]:
    """Return the rights that an account needs to decide on a transaction which another account has begun."""
    return [(topic, PUB) for topic in sorted(undecided.topics)]


def run_properties(run: HalfBatch, message: StoredMessage, *, group: str, account: str | None) -> dict[str, str]:
    """Return the properties that `run_of` and `origin_of` read."""
    properties = {
        NAME: run.transaction,
        TOKEN: run.token,
        NUMBER: str(run.number),
        COUNT: str(run.messages),
        Property.REAL_TOPIC: message.topic,
        Property.REAL_QUEUE_ID: str(message.queue_id),
        Property.PRODUCER_GROUP: group,
    }
    more = {DECIDER: run.ledger, ACCOUNT: account}
    return properties | {name: value for name, value in more.items() if value is not None}
