"""How long the console's search box takes among a million messages: by id, by key, and by text in them.

    searching.py [--messages 1000000] [--rounds 3] [--late]

Messages of 200 bytes with a key, in 8 queues of a topic, sent in batches. The broker has core 0, the console, a process
of its own, core 1; each search is a page of it, read to its end. Nothing is known yet in the first search after a start
of the broker: it compares what it gives out with its queues. "In 20 messages" is text in twenty neighbours in the
middle, of which the page shows 20: it comes when they are found. Beside each stands what both processes had of the
processor.

`--late`: how late a timer is in the loop of a broker in this process, while text is looked for that does not occur.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import late_timer
from fairness import CLIENT_CORE
from late_timer import waited_until
from pyromq import AsyncProducer, Message
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.listening import new_serving_loop
from servers import SERVER_CORE, Server, cpu_seconds, folder_for_now, our_server, pinned

TOPIC, QUEUES = "searched", 8
BODY_BYTES, BATCH, AT_ONCE = 200, 500, 8
NEIGHBOURS = 20


class Search(NamedTuple):
    """What is typed, and how many messages are found."""

    name: str
    query: dict[str, str]
    found: int


class Took(NamedTuple):
    """Seconds by the clock, and of the processor."""

    seconds: float
    broker: float
    console: float


async def fill(namesrv: str, count: int) -> str:
    """Send the messages; return the id of one in the middle."""
    async with AsyncAdmin(namesrv) as admin, AsyncProducer("bench", namesrv) as producer:
        await admin.create_topic(TOPIC, QUEUES)
        queues = [each.queue for each in await admin.topic_status(TOPIC)]
        numbers, ids = iter(range(0, count, BATCH)), {}

        async def send() -> None:
            for first in numbers:
                batch = [message(number, count) for number in range(first, first + BATCH)]
                ids[first] = await producer.send_batch(batch, queue=queues[first // BATCH % QUEUES])

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        middle = ids[count // 2 // BATCH * BATCH]
        return middle.message_id.split(",")[0]


def message(number: int, count: int) -> Message:
    fields = {"order": number, "customer": f"customer-{number * 7919 % 1_000_003}"}
    if number == count // 2:
        fields["note"] = "lonely-needle"
    elif 0 <= number - (count // 2 + 100) < NEIGHBOURS:
        fields["note"] = "one-of-twenty"
    text = json.dumps(fields)[:-1] + ', "rest": "'
    return Message(TOPIC, (text + "x" * (BODY_BYTES - len(text) - 2) + '"}').encode(), keys=f"key-{number}")


@contextlib.contextmanager
def console(namesrv: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Run a console; yields port and process."""
    command = [*pinned(CLIENT_CORE), sys.executable, "-m", "pyromq", "console", "--namesrv", namesrv, "--port", "0"]
    process = subprocess.Popen([*command, "--data", str(folder / "console")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().rstrip("/\n").rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def page(port: int, query: dict[str, str]) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/messages?{urlencode(query)}")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def timed(server: Server, port: int, pid: int, search: Search) -> Took:
    broker, beside, began = server.cpu_seconds(), cpu_seconds(pid), time.perf_counter()
    text = page(port, search.query)
    seconds = time.perf_counter() - began
    found = re.search(r"<b>(\d+) messages?</b>", text)
    if found is None or int(found[1]) != search.found:
        print(
            f"{search.name}: found {found and found[1]}, not {search.found}; {'time was up' * ('time was up' in text)}"
        )
    return Took(seconds, server.cpu_seconds() - broker, cpu_seconds(pid) - beside)


def searches(message_id: str, count: int) -> list[Search]:
    text = {"topic": TOPIC, "by": "text"}
    return [
        Search("by id", {"q": message_id}, 1),
        Search("by key", {"q": f"key-{count // 3}"}, 1),
        Search("text in 20 messages, shown once found", {**text, "q": "one-of-twenty", "limit": "20"}, NEIGHBOURS),
        Search("text in one message, to the end", {**text, "q": "lonely-needle"}, 1),
        Search("text that does not occur", {**text, "q": "nowhere-to-be-found"}, 0),
    ]


def measure(count: int, rounds: int) -> None:
    took: dict[str, list[Took]] = {}
    with folder_for_now() as folder:
        with our_server(folder) as server:
            began = time.perf_counter()
            message_id = asyncio.run(fill(server.namesrv or "", count))
            print(f"{count:,} messages: {time.perf_counter() - began:.0f} s to send\n", flush=True)
        print("| looked for | first after a start: s (broker, console) | again |\n|---|---:|---:|")
        for search in searches(message_id, count):
            for _ in range(rounds):
                with our_server(folder) as server, console(server.namesrv or "", folder) as (port, pid):
                    page(port, {"topic": "none"})  # templates are read, routes known
                    for when in ("first", "again"):
                        took.setdefault(when, []).append(timed(server, port, pid, search))
            print(f"| {search.name} | {' | '.join(map(shown, took.values()))} |", flush=True)
            took.clear()


def shown(took: list[Took]) -> str:
    seconds, broker, beside = (statistics.median(each) for each in zip(*took, strict=True))
    return f"{seconds:.2f} ({broker:.2f}, {beside:.2f})"


def late(count: int, rounds: int) -> None:
    """Say how late a timer of a millisecond is in the broker's loop meanwhile: what others' requests may wait."""
    with folder_for_now() as folder:
        with our_server(folder) as server:
            asyncio.run(fill(server.namesrv or "", count))
        os.sched_setaffinity(0, {SERVER_CORE})
        print("| while text is looked for | late, p50 / p99 / most, ms | of it the broker |\n|---|---:|---:|")
        for _ in range(rounds):
            with asyncio.Runner(loop_factory=new_serving_loop) as runner:
                runner.run(late_in(folder))


async def late_in(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(NameServer(NameServerConfig(port=0)))
        await stack.enter_async_context(Broker(BrokerConfig(folder, port=0, namesrv=(names.address,))))
        port, _ = await asyncio.to_thread(stack.enter_context, console(names.address, folder))
        await asyncio.to_thread(page, port, {"topic": "none"})
        for when in ("first after a start", "again"):
            query = {"topic": TOPIC, "by": "text", "q": "nowhere-to-be-found"}
            search = asyncio.ensure_future(asyncio.to_thread(page, port, query))
            waited = await waited_until(search.done)
            times = " | ".join(late_timer.shown(each) for each in zip(*waited, strict=True))
            print(f"| {when} | {times} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--late", action="store_true", help="how late a timer is in the broker's loop meanwhile")
    options = parser.parse_args()
    (late if options.late else measure)(options.messages, options.rounds)
