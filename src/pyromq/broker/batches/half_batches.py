"""Half batches: the runs of half messages of undecided batch transactions.

A run is one record of the half runs' topic, from one request with messages of one queue. The record's body is a batch
as producers send it, so single messages cost nothing before the decision. Its properties are:

    TRAN_NAME, TRAN_TOKEN, TRAN_RUN    the transaction, the attempt, the number of the run in the attempt
    TRAN_COUNT                         its number of messages
    TRAN_LEDGER                        the ledger broker (which decides), if it is another one
    TRAN_ACCOUNT                       the account that began the transaction, if permissions are on
    REAL_TOPIC, REAL_QID, PGROUP       as for other half messages

A run that its sender repeats, for lack of a reply, is stored once. A run without messages announces an attempt to the
ledger broker: the attempt's messages for this topic are all at other brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import BatchIncomplete
from pyromq.message import Property, StoredMessage
from pyromq.permissions.account import PUB, Need
from pyromq.plural import counted
from pyromq.quota import Quota
from pyromq.remoting.bodies import BatchAttempt, UndecidedBatch

NAME, TOKEN, NUMBER, COUNT, DECIDER = "TRAN_NAME", "TRAN_TOKEN", "TRAN_RUN", "TRAN_COUNT", "TRAN_LEDGER"
ACCOUNT = "TRAN_ACCOUNT"
# Time-out (ms) of a run on which another broker decides: as long as upstream keeps a half message.
ELSEWHERE_MS = 72 * 3_600_000


class HalfBatch(NamedTuple):
    """One run (a record with messages of one queue): its place in the log, its transaction and attempt."""

    queue_offset: int
    log_offset: int
    transaction: str
    token: str
    number: int
    messages: int
    ledger: str | None  # name of the broker that decides on the transaction; None if this broker does


@dataclass(slots=True)
class _Attempt:
    """The runs of one attempt, by their number.

    `holder` is the account or connection whose quota they count against.
    """

    runs: dict[int, HalfBatch] = field(default_factory=dict)
    holder: str = ""  # account or connection whose quota the runs count against; empty if read from the log


@dataclass(slots=True)
class Undecided:
    """The attempts at one batch transaction, by token, and the topics of all its runs.

    `owner` is the account that began the transaction.
    """

    touched: float  # time of the last run (monotonic seconds)
    ledger: str | None  # name of the broker that decides on the transaction; None if this broker does
    owner: str | None
    topics: set[str] = field(default_factory=set)
    attempts: dict[str, _Attempt] = field(default_factory=dict)


class HalfBatches:
    """The undecided runs of one broker, by transaction. `most` limits new runs; all runs found in the log are kept."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        # The holders of this quota are accounts and connections.
        self._quota: Quota[str] = Quota("maxUndecidedRuns", most, shares=2, is_hard=True)
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
        """Return the names of the undecided transactions, oldest first."""
        return list(self._open)

    def check_room(self, holder: str) -> None:
        """Raise `LimitReached` unless the holder (an account or connection) may have one more run."""
        self._quota.check(
            holder,
            text=f"{holder} has {self._quota.of(holder)} undecided runs of batch transactions, the limit of one"
            f" account or connection, of {self._quota.used} in all; wait until some are decided or rolled back",
        )

    def add(self, run: HalfBatch, *, topic: str, owner: str | None, age_seconds: float) -> None:
        """Enter a run that was stored `age_seconds` ago. `owner` is the account that began the run's transaction."""
        touched = self._clock.monotonic() - age_seconds
        undecided = self._open.setdefault(run.transaction, Undecided(touched, run.ledger, owner))
        undecided.touched = max(undecided.touched, touched)
        undecided.ledger = undecided.ledger or run.ledger
        undecided.topics.add(topic)
        attempt = undecided.attempts.setdefault(run.token, _Attempt())
        if run.number not in attempt.runs:
            attempt.runs[run.number] = run
            self._quota.add(attempt.holder)

    def count_for(self, holder: str, run: HalfBatch) -> None:
        """Count the attempt of a run against the quota of this holder, unless it counts against another holder's."""
        attempt = self._open[run.transaction].attempts[run.token]
        if not attempt.holder:
            self._quota.release(attempt.holder, len(attempt.runs))
            attempt.holder = holder
            self._quota.add(attempt.holder, len(attempt.runs))

    def check_complete(self, transaction: str, attempts: list[BatchAttempt]) -> None:
        """Compare the messages that this broker holds for each attempt at a transaction with the count in the commit.

        Raises `BatchIncomplete` if they differ, or if there are no messages at all.
        """
        undecided = self._open.get(transaction)
        if undecided is None and not any(attempt.messages for attempt in attempts):
            raise BatchIncomplete(
                f"transaction {transaction!r} cannot be committed: this broker has no messages of it. None were sent,"
                " or all were rolled back. Send messages under this name first: an empty batch cannot be committed"
            )
        for attempt in attempts:
            found = undecided.attempts.get(attempt.token) if undecided is not None else None
            held = 0 if found is None else _count(found)
            if held != attempt.messages:
                raise BatchIncomplete(
                    f"transaction {transaction!r}: attempt {attempt.token!r} has {counted(held, 'message')} here, not"
                    f" the {attempt.messages} to be committed; it was rolled back, perhaps after"
                    " batchTransactionTimeOut, or never sent completely. Send the batch again as a new attempt"
                )

    def settle(self, transaction: str, winners: Iterable[str]) -> list[HalfBatch]:
        """Remove all attempts at a transaction.

        Return the winning attempts' runs with messages, in order of arrival.
        """
        undecided = self._open.pop(transaction, None)
        if undecided is None:
            return []
        won = [attempt for token in winners if (attempt := undecided.attempts.get(token)) is not None]
        for attempt in undecided.attempts.values():
            self._quota.release(attempt.holder, len(attempt.runs))
        runs = [run for attempt in won for run in attempt.runs.values() if run.messages]
        return sorted(runs, key=lambda run: run.queue_offset)

    def known(self, transaction: str, tokens: Iterable[str]) -> list[str]:
        """Return those tokens that are undecided attempts at the transaction."""
        undecided = self._open.get(transaction)
        return [] if undecided is None else [token for token in tokens if token in undecided.attempts]

    def drop(self, transaction: str, tokens: Iterable[str]) -> None:
        """Remove these attempts at a transaction; unknown tokens are ignored."""
        for token in self.known(transaction, tokens):
            undecided = self._open[transaction]
            attempt = undecided.attempts.pop(token)
            self._quota.release(attempt.holder, len(attempt.runs))
            if not undecided.attempts:
                del self._open[transaction]

    def silent(self, timeout_ms: int) -> list[tuple[str, list[str]]]:
        """Return the transactions whose last run is older than the time-out, each with the tokens of its attempts."""
        now = self._clock.monotonic()
        return [
            (transaction, list(undecided.attempts))
            for transaction, undecided in self._open.items()
            if (now - undecided.touched) * 1000 > (timeout_ms if undecided.ledger is None else ELSEWHERE_MS)
        ]

    def described(self, transaction: str) -> UndecidedBatch:
        """Return an undecided transaction in the form in which clients see it."""
        undecided = self._open[transaction]
        return UndecidedBatch(
            transaction,
            [BatchAttempt(token, _count(attempt)) for token, attempt in undecided.attempts.items()],
            round((self._clock.monotonic() - undecided.touched) * 1000),
            undecided.ledger,
        )

    def first_needed(self, end: int) -> int:
        """Return the queue offset of the oldest undecided run; `end` if there is none."""
        firsts = (
            next(iter(attempt.runs.values())).queue_offset
            for undecided in self._open.values()
            for attempt in undecided.attempts.values()
        )
        return min(firsts, default=end)


def _count(attempt: _Attempt) -> int:
    return sum(run.messages for run in attempt.runs.values())


def run_of(queue_offset: int, log_offset: int, properties: dict[str, str]) -> HalfBatch | None:
    """Return the run that a record with these properties holds; None if the properties are not a run's."""
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


def batch_needs(undecided: Undecided) -> list[Need]:
    """Return the rights that an account needs to decide on another account's batch transaction.

    These are PUB on all topics of the transaction.
    """
    return [(topic, PUB) for topic in sorted(undecided.topics)]


def run_properties(run: HalfBatch, message: StoredMessage, *, group: str, account: str | None) -> dict[str, str]:
    """Return the properties of a run's record, which `run_of` reads."""
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
