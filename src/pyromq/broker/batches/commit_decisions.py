"""The ledger of batch transactions: decisions with their winning attempts.

Each name is decided once; then the decision is kept for a time.

    queue of the ledger's topic   body of a record (JSON)   meaning
    0                             LedgerEntry               the commit point: these attempts win
    1                             LedgerNote                progress since: visible up to here, rolled back

The table in memory follows queue 0. RocketMQ has no batch transactions.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.broker.config import BrokerConfig
from pyromq.broker.put_message import PutMessage
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.message import StoredMessage
from pyromq.names import LEDGER_TOPIC
from pyromq.quota import Quota
from pyromq.remoting.bodies import FILE, BatchAttempt, LedgerEntry, LedgerNote, decode_body, encode_body
from pyromq.remoting.bodies.body import Body
from pyromq.store.message_store import MessageStore

ENTRIES, NOTES = 0, 1  # ids of the ledger topic's two queues
QUEUES = 2  # number of queues of the ledger's topic


@dataclass(slots=True)
class CommitDecision:
    """The decision on one batch transaction: the attempts whose messages become visible."""

    transaction: str
    attempts: list[BatchAttempt]
    decided_ms: int
    queue_offset: int
    log_offset: int
    content: str | None = None  # description of the transaction's content, as the commit gave it
    visible: bool = False  # whether all messages of the transaction are in their queues
    holder: str = ""  # account or connection whose quota the decision counts against; empty if read from the log

    @property
    def winners(self) -> list[str]:
        """The tokens of the winning attempts."""
        return [attempt.token for attempt in self.attempts]


class CommitDecisions:
    """The decisions of one broker on batch transactions, oldest first."""

    def __init__(
        self, store: MessageStore, put_message: PutMessage, *, topics: Topics, config: BrokerConfig, clock: Clock
    ) -> None:
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._config = config
        self._clock = clock
        self._decisions: dict[str, CommitDecision] = {}
        most = config.limits.batch_decisions
        # The holders of this quota are accounts and connections.
        self._quota: Quota[str] = Quota("maxBatchDecisions", most, shares=2, is_hard=True)

    def __len__(self) -> int:
        return len(self._decisions)

    def apply(self, record: StoredMessage) -> CommitDecision:
        """Enter the decision of a record of the ledger's queue 0, and return the decision."""
        entry = decode_body(LedgerEntry, record.stored_body, FILE)
        if entry.transaction in self._decisions:  # the transaction was decided again after its decision was forgotten
            self._forget(entry.transaction)
        place = record.store_ms, record.queue_offset, record.log_offset
        decision = CommitDecision(entry.transaction, entry.attempts, *place, entry.content)
        self._quota.add(decision.holder)
        self._decisions[entry.transaction] = decision
        return decision

    def find(self, transaction: str) -> CommitDecision | None:
        return self._decisions.get(transaction)

    def decide(
        self, transaction: str, attempts: list[BatchAttempt], *, content: str | None, holder: str
    ) -> CommitDecision:
        """Append the decision on a transaction and return it. The decision counts as soon as this method returns.

        Raises `LimitReached` if the holder exceeds its share, `MessageRefused`, `StoreNotWritable`.
        """
        assert transaction not in self._decisions, "a name is decided once"
        self._quota.check(
            holder,
            text=f"{holder} has {self._quota.of(holder)} decided batch transactions, the limit of one"
            f" account or connection, of {self._quota.used} in all; wait until some expire",
        )
        self._put_message.put_record(self._record(ENTRIES, LedgerEntry(transaction, attempts, content)))
        decision = self._decisions[transaction]  # the append has called `apply`
        self._quota.release(decision.holder)
        self._quota.add(holder)
        decision.holder = holder
        return decision

    def note(self, note: LedgerNote) -> StoredMessage:
        """Return the record of a note, which is the progress of a transaction.

        The note must be appended after the records that it describes.
        """
        return self._record(NOTES, note)

    def expire(self) -> None:
        """Forget decisions whose messages are visible and that are older than `batchTransactionLedgerTime`."""
        limit = self._clock.now_ms() - self._config.ledger_ms
        for decision in list(self._decisions.values()):
            if decision.decided_ms > limit:
                break
            if decision.visible:
                self._forget(decision.transaction)

    @property
    def first_needed(self) -> int:
        """Queue offset of the oldest decision that is kept; the queue's end if none is kept."""
        oldest = next(iter(self._decisions.values()), None)
        return self._store.next_offset(LEDGER_TOPIC, ENTRIES) if oldest is None else oldest.queue_offset

    def _forget(self, transaction: str) -> None:
        self._quota.release(self._decisions.pop(transaction).holder)

    def _record(self, queue_id: int, content: Body) -> StoredMessage:
        self._topics.for_group_retry(LEDGER_TOPIC, QUEUES)  # tools can read only topics with settings
        return StoredMessage(
            LEDGER_TOPIC,
            encode_body(content),
            queue_id=queue_id,
            born_ms=self._clock.now_ms(),
            born_address=self._store.store_address,
        )
