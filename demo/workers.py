"""A consumer group of two processes, one of which is killed in the middle: order holds, and nothing is lost.

`work` runs the group and judges what it did; the file run by itself is one worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

GROUP = "demo-workers"
KILL_AFTER = 0.1  # of all messages
PATIENCE_SECONDS = 30.0  # without any progress


class Flight(msgspec.Struct):
    """What a worker looks at of a message's body: the aircraft and which of its flights this is."""

    tailnum: str
    sequence: int


def worker(namesrv: str, topic: str, diary: Path) -> None:
    """Consume in order until SIGTERM; write each message down before it counts as consumed."""
    from pyromq import ConsumeFrom, Consumer, ConsumerConfig

    decode = msgspec.json.Decoder(Flight).decode
    config = ConsumerConfig(orderly=True, batch=32, consume_from=ConsumeFrom.FIRST)
    consumer = Consumer(GROUP, namesrv, config=config)
    file = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @consumer.subscribe(topic)
    def fly(messages: list[Any]) -> None:
        now = time.monotonic_ns()
        flights = ((message, decode(message.body)) for message in messages)
        lines = [f"{now} {m.queue_id} {m.queue_offset} {f.sequence} {f.tailnum}\n" for m, f in flights]
        os.write(file, "".join(lines).encode())  # not kept in this process: it may be killed any moment

    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


@dataclass(frozen=True, order=True)
class Entry:
    """One message that a worker has written down."""

    at_ns: int  # monotonic: the same clock in all processes
    queue_id: int
    offset: int
    sequence: int
    tailnum: str


@dataclass
class Diary:
    """What one worker has written so far."""

    path: Path
    process: subprocess.Popen[bytes]
    entries: list[Entry] = field(default_factory=list)
    _read_bytes: int = 0

    def read(self) -> int:
        """Take in what is new; return how many entries that were."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(text)
        lines = text.decode().splitlines()
        for line in lines:
            at_ns, queue_id, offset, sequence, tailnum = line.split(" ", 4)
            self.entries.append(Entry(int(at_ns), int(queue_id), int(offset), int(sequence), tailnum))
        return len(lines)


def work(namesrv: str, topic: str, total: int, folder: Path, advance: Callable[[int], None]) -> tuple[int, str]:
    """Let two workers consume `total` messages and kill one; return how many came, and a sentence on what happened.

    Raises `RuntimeError` when messages stop coming or an aircraft's flights came out of order.
    """
    diaries = [_start(namesrv, topic, folder / f"worker-{number}.txt") for number in (1, 2)]
    try:
        killed_ns = _watch(diaries, total, advance)
    finally:
        for diary in diaries:
            diary.process.terminate()
            diary.process.wait(15)
    killed, survivor = diaries
    left_over = {entry.queue_id for entry in killed.entries}
    first_ns: dict[int, int] = {}  # of each queue that the other went on with; some were consumed whole by then
    for entry in sorted(survivor.entries):
        if entry.queue_id in left_over and entry.at_ns > killed_ns:
            first_ns.setdefault(entry.queue_id, entry.at_ns)
    count, repeats = judge(killed.entries + survivor.entries)
    told = f"worker 1 was killed after {len(killed.entries):,} messages"
    if first_ns:
        told += f"; worker 2 had its queues {(max(first_ns.values()) - killed_ns) / 1e9:.2f} s later"
    return count, f"{told}; {repeats:,} messages came twice"


def judge(entries: list[Entry]) -> tuple[int, int]:
    """Return how many messages there are, and how many came again. Raises `RuntimeError` where order did not hold.

    After a kill a queue goes on at its last commit, so messages may come again; but none before its predecessor.
    """
    flown: dict[str, int] = {}
    for entry in sorted(entries):
        expected = flown.get(entry.tailnum, 0) + 1
        if entry.sequence > expected:
            raise RuntimeError(f"{entry.tailnum}: flight {entry.sequence} came before flight {expected}")
        flown[entry.tailnum] = entry.sequence
    count = len({(entry.queue_id, entry.offset) for entry in entries})
    return count, len(entries) - count


def _start(namesrv: str, topic: str, path: Path) -> Diary:
    command = [sys.executable, str(Path(__file__).resolve()), namesrv, topic, str(path)]
    return Diary(path, subprocess.Popen(command))


def _watch(diaries: list[Diary], total: int, advance: Callable[[int], None]) -> int:
    """Follow the diaries until all messages have come; kill the first worker on the way, and return when (ns)."""
    seen: set[tuple[int, int]] = set()
    killed_ns = 0
    progressed = time.monotonic()
    while len(seen) < total:
        before = len(seen)
        for diary in diaries:
            if new := diary.read():
                seen.update((entry.queue_id, entry.offset) for entry in diary.entries[-new:])
        if len(seen) > before:
            progressed = time.monotonic()
            advance(len(seen) - before)
        elif time.monotonic() - progressed > PATIENCE_SECONDS:
            raise RuntimeError(f"{total - len(seen):,} messages have not come for {PATIENCE_SECONDS:g} s")
        if not killed_ns and len(seen) > KILL_AFTER * total:
            diaries[0].process.kill()  # SIGKILL: no chance to say good-bye
            diaries[0].process.wait()
            killed_ns = time.monotonic_ns()
        time.sleep(0.02)
    return killed_ns


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
