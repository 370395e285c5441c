"""Limits of the memory and the waiting requests that any client at the port can cause.

A limit that all connections share is a `Quota`: one connection gets at most a tenth of what the others leave.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.errors import UsageError
from pyromq.settings import check_ranges, setting, settings_of

_COUNT = (1, 1 << 31)


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits that ten thousand ordinary clients do not reach, with their cost in memory."""

    # Pulls held for a message, as upstream's queue of pulls; about a kilobyte each.
    waiting_pulls: int = setting(100_000, "maxWaitingPulls", range=_COUNT)
    # Their table is written whole after each change. Groups have room for two topics more each.
    topics: int = setting(50_000, "maxTopics", range=_COUNT)
    groups: int = setting(20_000, "maxGroups", range=_COUNT)  # of consumers
    # Entries of producers and consumers by group; about 400 bytes each.
    members: int = setting(200_000, "maxMembers", range=_COUNT)
    # Of consumers by group, topic and queue; about 100 bytes each.
    offsets: int = setting(1_000_000, "maxOffsets", range=_COUNT)
    # Queues locked for orderly consumers; about 300 bytes each.
    queue_locks: int = setting(100_000, "maxQueueLocks", range=_COUNT)
    # Of batch transactions; 1,300 bytes each at most, and their messages in the log.
    undecided_runs: int = setting(200_000, "maxUndecidedRuns", range=_COUNT)
    # On batch transactions, kept for `batchTransactionLedgerTime`; about 800 bytes each. One connection's share has
    # room for a stream of a batch each second: 259,200 in 72 hours.
    batch_decisions: int = setting(600_000, "maxBatchDecisions", range=_COUNT)
    # Characters of an expression: some hundred tags, each compared for each message.
    subscription_length: int = setting(8_192, "maxSubscriptionLength", range=_COUNT)
    # Undecided messages of transactions of single messages; about 600 bytes each.
    half_messages: int = setting(200_000, "maxHalfMessages", range=_COUNT)
    # Of records in the answer to a query by key; clients read frames of 16 MiB at most.
    query_bytes: int = setting(8 << 20, "maxQueryBytes", range=_COUNT)
    # Whether sends are refused while one waits for the disk for `send_wait_ms`. Off, unlike upstream: sends wait
    # behind the store here, not in front of it, so a refused message could be stored, and is duplicated by a retry.
    fast_failure: bool = setting(False, "brokerFastFailureEnable")
    send_wait_ms: int = setting(200, "waitTimeMillsInSendQueue", range=_COUNT)  # upstream's

    def __post_init__(self) -> None:
        check_ranges(self)
        if not isinstance(self.fast_failure, bool):
            name = settings_of(BrokerLimits)["fast_failure"].called
            raise UsageError(f"{name} is {self.fast_failure!r}; it must be true or false")


DEFAULT_LIMITS = BrokerLimits()
