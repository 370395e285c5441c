"""Message ids: the producer's unique id and the broker's offset id, both upper-case hex.

    unique id   client IP 4 or 16 | process id 2 | process constant 4 | ms since the first of the month 4 | counter 2
    offset id   store IP 4 or 16 | store port 4 | log offset 8

Source: RocketMQ 4.9.8, MessageClientIDSetter and MessageDecoder.createMessageId.
"""

from __future__ import annotations

import os
import struct
from datetime import datetime
from itertools import count
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.message import format_address, pack_address
from pyromq.plural import counted

_COUNTER_DIGITS = 4
_SAME_MS = 4096  # ids that may share a time: far fewer than the counter tells apart


class UniqueIds:
    """Makes ids that no other process and no other call makes: address, process, time and a counter."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._clock = clock
        self._constant = int.from_bytes(os.urandom(4), "big")
        self._ip = pack_address(address, 0)[:-4]
        self._counter = count()
        self._pid = 0
        self._prefix = ""
        self._month_ms = self._next_month_ms = 0

    def next(self) -> str:
        now = self._clock.now_ms()
        if not self._month_ms <= now < self._next_month_ms:
            self._start_month(now)
        if self._pid != os.getpid():  # also after a fork, so that parent and child never share ids
            self._pid = os.getpid()
            self._prefix = (self._ip + struct.pack(">HI", self._pid & 0xFFFF, self._constant)).hex().upper()
        return f"{self._prefix}{now - self._month_ms:08X}{next(self._counter) & 0xFFFF:04X}"

    def take(self, count: int) -> list[str]:
        """Return that many ids, for who makes very many messages at once: cheaper than calling `next` for each."""
        ids: list[str] = []
        while len(ids) < count:
            first = self.next()
            head, counter = first[:-_COUNTER_DIGITS], self._counter
            more = min(count - len(ids), _SAME_MS) - 1
            ids.append(first)
            ids += [f"{head}{next(counter) & 0xFFFF:04X}" for _ in range(more)]
        return ids

    def _start_month(self, now_ms: int) -> None:
        first = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_ms = int(first.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)


class OffsetId(NamedTuple):
    """A parsed offset id: the broker's address (`ip:port`) and the record's byte in its commit log."""

    address: str
    log_offset: int


def parse_offset_id(text: str) -> OffsetId:
    """Return where an offset id points. Raises `UsageError` for anything else, such as a producer's unique id."""
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"message id {text!r} is not hexadecimal") from error
    if len(raw) not in (16, 28):
        raise UsageError(
            f"message id {text!r} has {counted(len(text), 'digit')}; an offset id has 32 (IPv4) or 56 (IPv6)"
        )
    if raw[-12:-10] != b"\0\0":  # no port has more than 16 bits
        raise UsageError(
            f"message id {text!r} points at no broker; if it is the producer's unique id, give its topic too"
        )
    return OffsetId(format_address(raw[:-8]), int.from_bytes(raw[-8:], "big"))
