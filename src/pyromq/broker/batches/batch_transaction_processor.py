"""Answers requests of batch transactions: send a run, commit, roll back, find a decision, list. RocketMQ has none.

A run is one request with messages of one queue.
"""

from __future__ import annotations

from concurrent.futures import Future

from pyromq.broker.batches.commit_decisions import CommitDecision
from pyromq.broker.batches.half_batches import HalfBatch, Undecided, batch_needs
from pyromq.broker.internal_topics import DELAY, TIMER, TRANSACTION
from pyromq.broker.put_message import is_too_long, too_large
from pyromq.broker.shared_state import SharedState
from pyromq.errors import MessageRefused, ProtocolError, QueryNotFound
from pyromq.message import NAME_VALUE, PAIRS, Property, StoredMessage
from pyromq.names import RETRY_PREFIX, TRACE_TOPIC, check_topic
from pyromq.record import batch_labels
from pyromq.remoting.bodies import (
    ATTEMPTS,
    BatchAttempt,
    BatchAttempts,
    BatchDecision,
    UndecidedBatch,
    UndecidedBatches,
    decode_body,
    encode_body,
)
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import CommitBatch, FindBatch, HalfRunStored, ListBatches, RollBackBatch, SendHalfRun
from pyromq.slow_work import yield_slice
from pyromq.store.batch_appends import members_of

MAX_NAME = 255  # limit of a transaction's name or a token (characters): both are properties of each run
MAX_LISTED = 200  # limit of transactions in one list
# Length of properties (characters) that surely fits a record, in any encoding and with any cluster name.
_SURELY_SHORT = 4096


class BatchTransactionProcessor:
    """Stores runs (requests with messages of one queue), and decides on batch transactions."""

    def __init__(self, state: SharedState) -> None:
        self._permissions = state.permissions
        self._batches = state.batches
        self._admission = state.admission
        self._confirmation = state.confirmation
        self._config = state.config
        self._cluster_pair = f"{PAIRS}{Property.CLUSTER}{NAME_VALUE}{state.config.cluster}"

    @answers(SendHalfRun)
    def send(self, header: SendHalfRun, call: Call) -> Reply | Future[Reply]:
        """Store a run of messages, which no consumer reads before the commit. A repeated run is stored once.

        A run without messages and queue tells the ledger broker (which decides) that the attempt has messages at other
        brokers. The run's topic need not exist at the ledger broker.
        """
        self._admission.check_transactions()
        self._confirmation.refuse_if_overloaded()
        _check_name("transaction", header.transaction)
        _check_name("token", header.token)
        if header.number < 0:
            raise ProtocolError(f"header field number is {header.number}; runs are counted from 0")
        if header.topic.startswith(RETRY_PREFIX):
            raise MessageRefused(f"a batch transaction cannot send to retry topic {header.topic}")
        # The trace topic needs no right, so any account could begin a transaction under another account's name.
        if header.topic == TRACE_TOPIC:
            raise MessageRefused(f"a batch transaction cannot send to trace topic {header.topic}")
        queue_id, count = self._place(header, call)
        message = StoredMessage(
            header.topic, call.body, queue_id=queue_id, born_ms=header.born_ms, born_address=call.peer.packed_address
        )
        ledger = None if header.ledger == self._config.name else header.ledger
        run = HalfBatch(0, 0, header.transaction, header.token, header.number, count, ledger)
        self._batches.take(message, run, group=header.producer_group, account=call.account, holder=_holder(call))
        reply = self._confirmation.when_safe(Reply(HalfRunStored(queue_id=queue_id, messages=count)))
        return self._admission.when_saved(header.topic, reply)

    def _place(self, header: SendHalfRun, call: Call) -> tuple[int, int]:
        """Return the queue id of a run and its number of messages. Raises the error that refuses topic or messages."""
        if not call.body and header.queue_id < 0:
            check_topic(header.topic)
            return 0, 0
        topic = self._admission.topic_for(header, call)
        queue_id = header.queue_id if header.queue_id >= 0 else self._admission.any_queue(topic)
        return queue_id, self._checked(call.body)

    def _checked(self, body: bytes) -> int:
        """Return the number of messages in a run.

        Raises `MessageRefused` unless each message can be stored unchanged.
        """
        if not body or len(body) > self._config.max_message_bytes:
            raise MessageRefused(f"{too_large(self._config)} The run has {len(body)} bytes.")
        if (members := members_of(body, self._cluster_pair)) is not None:
            return members.count
        count = 0
        for body_size, text in batch_labels(body):
            if not body_size:
                raise MessageRefused(f"message {count} of the run has an empty body")
            if len(text) > _SURELY_SHORT and is_too_long(text + self._cluster_pair):
                raise MessageRefused(f"message {count} of the run: {too_large(self._config)}")
            if DELAY in text or TRANSACTION in text or TIMER in text:
                raise MessageRefused(
                    f"message {count} of the run is delayed or a half message; send it outside the batch"
                )
            count += 1
        return count

    @answers(CommitBatch)
    def commit(self, header: CommitBatch, call: Call) -> Reply | Future[Reply]:
        """Commit a transaction, unless it is decided already; the reply is the decision that counts."""
        _check_name("transaction", header.transaction)
        self._confirmation.refuse_if_overloaded()
        if header.content is not None:
            _check_name("content", header.content)
        decision, by_this = self._batches.commit(
            header.transaction, _attempts(call), content=header.content, holder=_holder(call)
        )
        return self._confirmation.when_safe(Reply(body=encode_body(_told(decision, by_this=by_this))))

    @answers(RollBackBatch)
    def roll_back(self, header: RollBackBatch, call: Call) -> Reply | Future[Reply]:
        """Discard undecided attempts at a transaction; decided attempts are ignored."""
        self._confirmation.refuse_if_overloaded()
        self._batches.roll_back(header.transaction, [attempt.token for attempt in _attempts(call)])
        return self._confirmation.when_safe(Reply())

    @answers(FindBatch)
    def find(self, header: FindBatch, call: Call) -> Reply | Future[Reply]:
        """Return the decision on a transaction, once it is confirmed as sends are.

        Raises `QueryNotFound` without a decision.
        """
        decision = self._batches.find(header.transaction)
        if decision is None:
            raise QueryNotFound(f"transaction {header.transaction!r} is not decided at this broker, or was forgotten")
        return self._confirmation.when_safe(Reply(body=encode_body(_told(decision))))

    @answers(ListBatches)
    async def list(self, header: ListBatches, call: Call) -> Reply:
        """Return the undecided transactions, oldest first; only one if the request names it.

        The list contains only transactions that the account may decide on, since it shows the tokens of attempts.
        """
        found: list[UndecidedBatch] = []
        count = 0
        for name in self._batches.undecided_names():
            await yield_slice()
            undecided = self._batches.undecided(name)
            if undecided is None or not self._may_decide(call.account, undecided):
                continue
            count += 1
            if len(found) < MAX_LISTED and header.transaction in (None, name):
                found.append(self._batches.described(name))
        return Reply(body=encode_body(UndecidedBatches(found, count)))

    def _may_decide(self, asker: str | None, undecided: Undecided) -> bool:
        return asker == undecided.owner or self._permissions.lacks(asker, batch_needs(undecided)) is None


def _holder(call: Call) -> str:
    return f"connection {call.peer.address}" if call.account is None else f"account {call.account}"


def _attempts(call: Call) -> list[BatchAttempt]:
    attempts = decode_body(BatchAttempts, call.body, ATTEMPTS).attempts
    for attempt in attempts:
        _check_name("token", attempt.token)
        if attempt.messages < 0 or any(messages < 0 for messages in attempt.elsewhere.values()):
            raise ProtocolError(f"attempt {attempt.token!r} has a negative number of messages")
    if len({attempt.token for attempt in attempts}) < len(attempts):
        raise ProtocolError("an attempt is named twice")
    return attempts


def _check_name(field: str, name: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ProtocolError(f"{field} {name[:MAX_NAME]!r}: write 1 to {MAX_NAME} printable characters")


def _told(decision: CommitDecision, *, by_this: bool = False) -> BatchDecision:
    return BatchDecision(
        decision.transaction,
        decision.attempts,
        decision.decided_ms,
        visible=decision.visible,
        by_this=by_this,
        content=decision.content,
    )
