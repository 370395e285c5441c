"""Batch transactions of a history: two attempts each, of which one may win; what is asked about them, and must hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.bodies import BatchAttempt, BatchAttempts, BatchDecision, decode_body, encode_body
from pyromq.remoting.command import Response
from pyromq.remoting.headers import CommitBatch, RollBackBatch, SendHalfRun

TOPIC = "orders"
TOKENS = ("first", "second")


@dataclass(slots=True)
class Batch:
    """One by name; `messages` counts by token, `begun` and `committed` are the steps of its commit, if any."""

    name: str
    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    winner: str = ""
    begun: int | None = None
    committed: int | None = None

    def commit(self, token: str) -> tuple[CommitBatch, bytes]:
        attempts = BatchAttempts([BatchAttempt(token, self.messages[token])])
        return CommitBatch(transaction=self.name), encode_body(attempts)

    def roll_back(self) -> tuple[RollBackBatch, bytes]:
        return RollBackBatch(transaction=self.name), encode_body(BatchAttempts([BatchAttempt(each) for each in TOKENS]))

    def is_won(self, response: Response) -> bool:
        """Whether an answer to a commit says that the winner won."""
        if response.code:
            return False
        return [each.token for each in decode_body(BatchDecision, response.body).attempts] == [self.winner]


def run_of(batch: Batch, token: str, number: int, keys: list[str]) -> tuple[SendHalfRun, bytes]:
    """Return the request that sends a run, to the queue of its number."""
    header = SendHalfRun(
        producer_group="p",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=number,
        transaction=batch.name,
        token=token,
        number=number,
        born_ms=0,
    )
    return header, encode_batch([BatchMember(0, key.encode(), "") for key in keys])
