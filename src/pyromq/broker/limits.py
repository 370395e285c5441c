"""Limits of the memory and the waiting requests that any client at the port can cause.

A limit that all connections share is a `Quota`. Unless stated otherwise, one connection may use a tenth of what the
other connections leave free.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.errors import UsageError
from pyromq.server_settings import check_ranges, setting, settings_of

_COUNT = (1, 1 << 31)


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits of one broker, and what each entry costs in memory.

    Ten thousand ordinary clients do not reach them.
    """

    # Limit of long polls (waiting pulls): as long as upstream's queue of pulls. A pull takes about a kilobyte.
    waiting_pulls: int = setting(100_000, "maxWaitingPulls", range=_COUNT)
    # Limit of topics: the table of topics is written as a whole after each change. Topics of groups do not count.
    topics: int = setting(50_000, "maxTopics", range=_COUNT)
    groups: int = setting(20_000, "maxGroups", range=_COUNT)  # limit of consumer groups
    # Limit of group members: each producer and consumer counts once per group. A member takes about 400 bytes.
    members: int = setting(200_000, "maxMembers", range=_COUNT)
    # Limit of stored consumer offsets, one per group, topic and queue. An offset takes about 100 bytes.
    offsets: int = setting(1_000_000, "maxOffsets", range=_COUNT)
    # Limit of queues locked for orderly consumers. A lock takes about 300 bytes.
    queue_locks: int = setting(100_000, "maxQueueLocks", range=_COUNT)
    # Limit of undecided runs (requests with a batch transaction's messages of one queue): at most 1,300 bytes each.
    undecided_runs: int = setting(200_000, "maxUndecidedRuns", range=_COUNT)
    # Limit of decisions on batch transactions, kept for `batchTransactionLedgerTime`: about 800 bytes each. The half
    # that one account or connection may use has room for a stream with one batch each second: 259,200 in 72 hours.
    batch_decisions: int = setting(600_000, "maxBatchDecisions", range=_COUNT)
    # Limit of the messages of one group and queue that are popped and neither acknowledged nor visible again. At the
    # limit, pops of the queue find nothing.
    in_flight: int = setting(10_000, "maxInFlightPerQueue", range=_COUNT)
    # Limit of pops with unfinished messages, and of messages whose invisible time was changed. Each takes about 280
    # bytes, so all together take 100 MB. One group may use half of the pops that other groups leave free.
    pops_in_flight: int = setting(350_000, "maxPopsInFlight", range=_COUNT)
    # Limit of a subscription's expression (characters): a few hundred tags, each compared with each message.
    subscription_length: int = setting(8_192, "maxSubscriptionLength", range=_COUNT)
    # Limit of half messages (of single-message transactions) that are not decided: about 600 bytes each.
    half_messages: int = setting(200_000, "maxHalfMessages", range=_COUNT)
    # Limit of the records in the reply to a query by key (bytes): clients accept frames of 16 MiB at most.
    query_bytes: int = setting(8 << 20, "maxQueryBytes", range=_COUNT)
    # Whether sends are refused while another send has waited for the disk for `send_wait_ms`. Off, unlike upstream:
    # sends wait after they are stored here, so a refused message may be stored, and a retry duplicates the message.
    fast_failure: bool = setting(False, "brokerFastFailureEnable")
    # Wait (ms) that `fast_failure` allows: upstream's default.
    send_wait_ms: int = setting(200, "waitTimeMillsInSendQueue", range=_COUNT)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not isinstance(self.fast_failure, bool):
            name = settings_of(BrokerLimits)["fast_failure"].called
            raise UsageError(f"{name} is {self.fast_failure!r}; it must be true or false")


DEFAULT_LIMITS = BrokerLimits()
