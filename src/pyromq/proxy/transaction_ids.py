"""The transaction id of a half message names the message's place, so proxies need no table of transactions.

    BROKER:LOG_OFFSET:QUEUE_OFFSET

Every proxy can pass on a decision, also after a restart. Clients do not parse the text.
"""

from __future__ import annotations

from typing import NamedTuple

from pyromq.excerpt import excerpt
from pyromq.proxy.grpc_refusal import GrpcRefusal
from pyromq.proxy.proto import definition_pb2 as proto

_MAX_DIGITS = 19


class TransactionId(NamedTuple):
    """Broker name, log offset, and queue offset in the topic of half messages."""

    broker_name: str
    log_offset: int
    queue_offset: int

    def encode(self) -> str:
        return f"{self.broker_name}:{self.log_offset}:{self.queue_offset}"


def parse_transaction_id(text: str) -> TransactionId:
    """Return the place in a transaction id. Raises `GrpcRefusal` with INVALID_TRANSACTION_ID."""
    words = text.rsplit(":", 2)
    if len(words) == 3 and words[0] and all(_is_number(word) for word in words[1:]):
        return TransactionId(words[0], int(words[1]), int(words[2]))
    reason = f"transaction id {excerpt(text, 100)!r} is invalid; it comes with the result of sending the message"
    raise GrpcRefusal(proto.INVALID_TRANSACTION_ID, reason)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MAX_DIGITS
