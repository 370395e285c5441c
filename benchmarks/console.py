"""How long the console's views take with 1,000 topics of 8 queues and 2,000 groups.

    python console.py [--rounds N]

A broker and the console in one process, as in tests: a view's time has the broker's part in it. Each view asks the
cluster anew, as somebody's does who comes after a pause. 100 messages are in one topic; each group has an offset in a
queue of one topic. A line says so where a view takes longer than it should.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.console.app import make_app
from pyromq.console.console import Console
from pyromq.console.console_config import ConsoleConfig
from pyromq.message import Message, MessageQueue
from pyromq.remoting.bodies import GroupConfig
from pyromq.testing import Cluster

TOPICS, QUEUES, GROUPS, MESSAGES = 1000, 8, 2000, 100
LIMIT_MS = 300
AT_ONCE = 50
PATHS = (
    *("/", "/topics", "/topics?sort=-messages&page=7", "/topics?filter=t09", "/topics/t0000", "/new-topic"),
    *("/groups", "/groups?sort=-lag&page=9", "/groups/g0000", "/groups/g0000/reset?topic=t0000&to=end", "/new-group"),
    *("/messages", "/messages?topic=t0000", "/message/t0000/broker-a/0/0", "/send?topic=t0000"),
    *("/dead-letters", "/dead-letters/g0000", "/brokers", "/brokers/broker-a", "/brokers/broker-a/settings"),
    *("/brokers/broker-a/change?setting=transactionCheckMax", "/find?q=t0000", "/find?q=nothing", "/audit"),
)


async def fill(cluster: Cluster) -> None:
    """Make topics and groups, and let each group consume a queue."""
    admin, producer = await cluster.admin(), await cluster.producer()
    names = [f"t{number:04d}" for number in range(TOPICS)]
    await in_turns(lambda name: admin.create_topic(name, QUEUES), names)
    for number in range(MESSAGES):
        await producer.send(Message(names[0], b'{"order": %d}' % number, keys=f"k{number}"))
    queues = {name: (await admin.topic_status(name))[0].queue for name in names}
    await in_turns(lambda n: consume(admin, f"g{n:04d}", queues[names[n % TOPICS]]), range(GROUPS))


async def consume(admin: AsyncAdmin, group: str, queue: MessageQueue) -> None:
    await admin.create_group(GroupConfig(name=group))
    await admin.commit_offset(group, queue, 0)


async def in_turns(work, items) -> None:
    items = list(items)
    for first in range(0, len(items), AT_ONCE):
        await asyncio.gather(*(work(item) for item in items[first : first + AT_ONCE]))


async def measure(client: httpx.AsyncClient, console: Console, path: str, rounds: int) -> list[float]:
    """Return the milliseconds of each round; the last snapshot is forgotten before each."""
    took = []
    for _ in range(rounds):
        console.clients_of(None).forget()
        began = time.perf_counter()
        answer = await client.get(path)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[-2000:])
    return took


async def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pyromq-console-") as folder:
        async with Cluster() as cluster:
            began = time.perf_counter()
            await fill(cluster)
            print(
                f"{TOPICS:,} topics x {QUEUES} queues, {GROUPS:,} groups: {time.perf_counter() - began:.0f} s to make"
            )
            config = ConsoleConfig(cluster.namesrv, Path(folder), sample_seconds=3600)
            console = Console(config)
            app = make_app(console)
            transport = httpx.ASGITransport(app)
            async with console, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8876") as client:
                client.follow_redirects = True
                await show(client, console, rounds)


async def show(client: httpx.AsyncClient, console: Console, rounds: int) -> None:
    print(f"{'ms':>40} {'p50':>7} {'max':>7}")
    for path in PATHS:
        await client.get(path)  # its template is read once
        took = await measure(client, console, path, rounds)
        late = f"  over {LIMIT_MS}" if max(took) > LIMIT_MS else ""
        print(f"{path:>60} {statistics.median(took):7.0f} {max(took):7.0f}{late}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    asyncio.run(run(parser.parse_args().rounds))
