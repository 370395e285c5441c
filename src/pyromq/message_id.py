"""Message ids: the producer's unique id and the broker's offset id, both upper-case hex.

    unique id   client IP 4 or 16 | process id 2 | process constant 4 | ms since the first of the month 4 | counter 2
    offset id   store IP 4 or 16 | store port 4 | log offset 8

Source: RocketMQ 4.9.8, MessageClientIDSetter and MessageDecoder.createMessageId.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from datetime import datetime
from itertools import count, islice
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.message import format_address, pack_address
from pyromq.platforms import platform
from pyromq.plural import counted

_BLOCK = 4096
# Limit of ids from `blocks` in one ms; ids from `next` may use the other half of the counter's range.
_MAX_IN_MS = 32_768


_process = os.getpid()


def _note_process() -> None:
    global _process
    _process = os.getpid()


platform.after_fork(after_in_child=_note_process)  # a forked child must not make the same ids as its parent


class UniqueIds:
    """Makes unique message ids from the IP address, the process, the time and a counter."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._clock = clock
        self._constant = int.from_bytes(os.urandom(4), "big")
        self._ip = pack_address(address, 0)[:-4]
        self.counter = count()
        self._month_ms = self._next_month_ms = 0
        self._given_ms = self._given = 0  # time of the last block (ms), and number of block ids with this time
        self._head_of = (0, 0)  # process and time of `_head`
        self._head = ""

    def next(self) -> str:
        return f"{self.head(self._clock.now_ms())}{next(self.counter) & 0xFFFF:04X}"

    def head(self, now_ms: int) -> str:
        """Return the common beginning of all ids of this process and this ms.

        An id is completed by four digits of `counter`.
        """
        if self._head_of != (_process, now_ms):
            if not self._month_ms <= now_ms < self._next_month_ms:
                self._start_month(now_ms)
            prefix = self._ip + struct.pack(">HI", _process & 0xFFFF, self._constant)
            self._head = f"{prefix.hex().upper()}{now_ms - self._month_ms:08X}"
            self._head_of = _process, now_ms
        return self._head

    def blocks(self, count: int) -> Iterator[tuple[str, range]]:
        """Yield `count` ids in parts: a `head` and the range of numbers to append. For very many ids in one call.

        The counter distinguishes 65,536 ids of one ms. Further ids have the time of the next ms.
        """
        while count > 0:
            some = min(count, _BLOCK)
            now_ms = self._clock.now_ms()
            if now_ms > self._given_ms:
                self._given_ms, self._given = now_ms, 0
            elif self._given >= _MAX_IN_MS:
                self._given_ms, self._given = self._given_ms + 1, 0
            self._given += some
            # One call takes all numbers, so that no other thread's numbers are between them.
            last = next(islice(self.counter, some - 1, None))
            yield self.head(self._given_ms), range(last + 1 - some, last + 1)
            count -= some

    def _start_month(self, now_ms: int) -> None:
        first = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_ms = int(first.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)


class OffsetId(NamedTuple):
    """A parsed offset id: the broker's address (`ip:port`) and the record's log offset."""

    address: str
    log_offset: int


def parse_offset_id(text: str) -> OffsetId:
    """Parse an offset id. Raises `UsageError` for any other string, such as a producer's unique id."""
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"message id {text!r} is not hexadecimal") from error
    if len(raw) not in (16, 28):
        raise UsageError(
            f"message id {text!r} has {counted(len(text), 'digit')}; an offset id has 32 (IPv4) or 56 (IPv6)"
        )
    if raw[-12:-10] != b"\0\0":  # not an offset id: no port has more than 16 bits
        raise UsageError(
            f"message id {text!r} points at no broker: it looks like a producer's unique id, not like an offset id"
        )
    return OffsetId(format_address(raw[:-8]), int.from_bytes(raw[-8:], "big"))


def is_offset_id(text: str) -> bool:
    """Return whether a string may be an offset id. True also for the few unique ids of a process with number 0."""
    try:
        parse_offset_id(text)
    except UsageError:
        return False
    return True
