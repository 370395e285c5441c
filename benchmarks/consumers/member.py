"""One consumer in a process of its own, which tells on its standard output what happens to it, and when.

    member.py MODE HOST:PORT-of-the-name-server TOPIC GROUP [--orderly] [--async] [--batch N] [--work-ms MS]

    mode      lines
    all       starting T, ready T; for each message `message T QUEUE OFFSET BODY`, body up to its first space;
              SIGTERM closes: closing T, closed T
    every     the same, but after each thousandth message only: `count T MESSAGES`
    cache     the listener hangs; before the start and whenever a line comes in: `own KILOBYTES`

T are nanoseconds of the machine's monotonic clock, as Java's System.nanoTime also gives them, so that the lines of
several processes can be put in order. Each line is written before the listener returns: a killed process has said it.
`java/Member.java` says the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyromq import AsyncConsumer, ConsumeFrom, ConsumerConfig, StoredMessage

MARK = 1000  # messages between two `count` lines


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def say_now(*words: object) -> None:
    say(words[0], time.monotonic_ns(), *words[1:])


class Listeners:
    """What the application does with messages, by mode."""

    def __init__(self, work_ms: float) -> None:
        self._work_seconds = work_ms / 1000
        self._count = 0
        self._lock = threading.Lock()

    def all(self, messages: list[StoredMessage]) -> None:
        for message in messages:
            say_now("message", message.queue_id, message.queue_offset, message.body.split(b" ", 1)[0].decode())
        if self._work_seconds:
            time.sleep(self._work_seconds)

    async def all_async(self, messages: list[StoredMessage]) -> None:
        self.all(messages)

    def every(self, messages: list[StoredMessage]) -> None:
        with self._lock:
            before = self._count
            self._count = count = before + len(messages)
        if count // MARK != before // MARK:
            say_now("count", count)

    async def every_async(self, messages: list[StoredMessage]) -> None:
        self.every(messages)

    def cache(self, messages: list[StoredMessage]) -> None:
        time.sleep(3600)


def config(options: argparse.Namespace) -> ConsumerConfig:
    kept = 10_000 if options.mode == "cache" else 1000
    return ConsumerConfig(
        consume_from=ConsumeFrom.FIRST,
        orderly=options.orderly,
        batch=options.batch,
        buffered_messages=kept,
        buffered_span=2 * kept,
        close_seconds=0.1 if options.mode == "cache" else 10.0,
    )


def own_kilobytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def answer() -> None:
    sys.stdin.readline()
    say("own", own_kilobytes())


async def run(options: argparse.Namespace) -> None:
    listeners = Listeners(options.work_ms)
    listener = getattr(listeners, options.mode + ("_async" if options.in_task else ""))
    consumer = AsyncConsumer(options.group, options.namesrv, config=config(options))
    consumer.subscribe(options.topic, listener)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    if options.mode == "cache":
        say("own", own_kilobytes())
        loop.add_reader(sys.stdin.fileno(), answer)
    say_now("starting")
    await consumer.start()
    say_now("ready")
    await ended.wait()
    say_now("closing")
    await consumer.close()
    say_now("closed")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["all", "every", "cache"])
    for name in ("namesrv", "topic", "group"):
        parser.add_argument(name)
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--async", action="store_true", dest="in_task")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--work-ms", type=float, default=0.0, help="how long the listener takes for a call")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(run(parsed()))
