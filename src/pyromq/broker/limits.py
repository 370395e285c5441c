"""Limits of what anybody who reaches the port can make a broker keep, wait with, or answer at once.

Those that everybody shares are shared out: one connection gets at most a tenth of what is free (`share`), so that
however many take part, the next one finds room.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyromq.errors import UsageError
from pyromq.remoting.connection_limits import share as share  # by which the limits here are shared out, too


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Numbers that ten thousand ordinary clients do not reach, and what they cost at most."""

    waiting_pulls: int = 100_000  # pulls held for a message, upstream's queue of pulls; about a kilobyte each
    topics: int = 50_000  # their table is written whole after each change; groups have room for two more each
    groups: int = 20_000  # of consumers
    members: int = 200_000  # entries of producers and consumers by group; about 400 bytes each
    offsets: int = 1_000_000  # of consumers by group, topic and queue; about 100 bytes each
    queue_locks: int = 100_000  # queues locked for a member of a group that keeps order; about 300 bytes each
    undecided_runs: int = 200_000  # of batch transactions; 1,300 bytes each at most, and their messages in the log
    # On batch transactions, kept for `batchTransactionLedgerTime`; about 800 bytes each. One connection's share has
    # room for a stream of a batch each second: 259,200 in 72 hours.
    batch_decisions: int = 600_000
    subscription_length: int = 8_192  # characters of an expression: some hundred tags, each compared for each message
    half_messages: int = 200_000  # undecided ones of transactions of single messages; about 600 bytes each
    query_bytes: int = 8 << 20  # of records in the answer to a query by key; clients read frames of 16 MiB at most
    # Whether sends are refused while one waits for the disk for `send_wait_ms`. Off, unlike upstream: sends do not wait
    # in front of the store here, but behind it, so that what is refused could be stored, and comes again.
    fast_failure: bool = False
    send_wait_ms: int = 200  # upstream's

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "fast_failure":
                if not isinstance(value, bool):
                    raise UsageError(f"{field.name} is {value!r}; it must be true or false")
                continue
            if not isinstance(value, int) or not 1 <= value <= MOST:
                raise UsageError(f"{field.name} is {value!r}; it must be 1 to {MOST}")


MOST = 1 << 31
DEFAULT_LIMITS = BrokerLimits()
