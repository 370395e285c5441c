"""What clients of a replica set saw, as lines: sends and their answers, deliveries, masters, and what is there at last.

A body is a text that only one send has. Times are seconds of this machine's monotonic clock. `broker` is the address
of the replica that answered, which stands in the message id of each answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TypeVar

import msgspec


class Kind(Enum):
    """How a message was sent."""

    PLAIN = "plain"
    KEYED = "keyed"
    BATCH = "batch"
    DELAYED = "delayed"
    TRANSACTION = "transaction"


class Outcome(Enum):
    """What the producer was told. UNKNOWN: an error; the message may be stored or not."""

    CONFIRMED = "confirmed"
    UNKNOWN = "unknown"
    ROLLED_BACK = "rolled back"


class Line(msgspec.Struct, frozen=True, tag=True):
    """One line of a history."""


class Sent(Line, frozen=True):
    """A send has ended. Queue and offset are None if the message has its place in the topic only later.

    `once`: one attempt at most may have been stored, so one copy at most may be there.
    """

    body: str
    kind: Kind
    sent_at: float
    answered_at: float
    outcome: Outcome = Outcome.UNKNOWN
    topic: str = "t"
    broker: str = ""
    queue: int | None = None
    offset: int | None = None
    once: bool = False


class Seen(Line, frozen=True):
    """A group got a message."""

    group: str
    topic: str
    queue: int
    offset: int
    body: str
    at: float


class Began(Line, frozen=True):
    """The registry names a new master. `at`: when that was seen, so not before it was so."""

    epoch: int
    broker: str
    at: float


class Stored(Line, frozen=True):
    """A message is in its queue after everything has healed."""

    topic: str
    queue: int
    offset: int
    body: str


class Deleted(Line, frozen=True):
    """Retention has deleted the messages of a queue before this offset."""

    topic: str
    queue: int
    before: int


class Accident(Line, frozen=True):
    """Something was done to a process or to a link. `what` is the same for all accidents of one kind."""

    what: str
    at: float
    whom: str = ""


AnyLine = Sent | Seen | Began | Stored | Deleted | Accident
_L = TypeVar("_L", bound=Line)


class History:
    """Lines in the order in which they were written. Any thread may write."""

    def __init__(self, lines: Iterable[AnyLine] = ()) -> None:
        self.lines = list(lines)
        self._lock = threading.Lock()

    def write(self, line: AnyLine) -> None:
        with self._lock:
            self.lines.append(line)

    def of(self, kind: type[_L]) -> list[_L]:
        """Return the lines of one kind."""
        return [line for line in list(self.lines) if isinstance(line, kind)]

    def save(self, path: Path) -> None:
        """Write the history to a file, a line of JSON each."""
        encoder = msgspec.json.Encoder()
        path.write_bytes(b"".join(encoder.encode(line) + b"\n" for line in list(self.lines)))

    @classmethod
    def load(cls, path: Path) -> History:
        decoder = msgspec.json.Decoder(AnyLine)
        return cls(decoder.decode(line) for line in path.read_bytes().splitlines())
