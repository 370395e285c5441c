"""What a scrape of metrics costs: how long it takes, and how long a send waits meanwhile.

    python metrics.py [--rounds N]

A broker with 1,000 topics of 8 queues and 2,000 groups on core 0, each group in each queue of one topic; a send each
millisecond over a connection of its own (`trickle.py`, core 1), and a scrape every two seconds. `moved`: no group has
consumed anything and each is somewhere else than at the scrape before, so that the age of each queue's first message is
read from its record. Delays count from when a send was due; "of it the broker" is for how long the broker itself ran.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import os
import statistics
import time
from pathlib import Path

import msgspec

from fairness import CLIENT_CORE, Sends, Turns
from loads import fairness_requests
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.metrics.endpoint import Scraping
from pyromq.remoting.bodies import ConsumerOffsetTable
from servers import folder_for_now, free_port, our_server

SETTLE_SECONDS = 2.0


def behind(folder: Path) -> None:
    """Set all groups back to the beginning of their queues."""
    file = folder / "config" / "consumerOffset.json"
    table = msgspec.json.decode(file.read_bytes(), type=ConsumerOffsetTable)
    offsets = {key: dict.fromkeys(queues, 0) for key, queues in table.offsets.items()}
    file.write_bytes(msgspec.json.encode(ConsumerOffsetTable(offsets=offsets)))


def scrape(port: int) -> tuple[int, int]:
    """Return how many bytes and lines an answer has."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    body = connection.getresponse().read()
    connection.close()
    return len(body), body.count(b"\n")


def live(folder: Path, count: int) -> None:
    """The whole server, by the clock."""
    port = free_port()
    with our_server(folder, arguments=("--metrics-port", str(port))) as server:
        sends = Sends(server)
        time.sleep(SETTLE_SECONDS)
        spans, quiet = [], []
        for _ in range(count):
            begin = time.monotonic_ns()
            size, lines = scrape(port)
            spans.append((begin, time.monotonic_ns()))
            time.sleep(SETTLE_SECONDS)
            quiet.append((spans[-1][1] + 500_000_000, time.monotonic_ns()))
        sends.end()
    took = [(end - begin) / 1e6 for begin, end in spans]
    print(f"{lines:,} lines, {size / 1e6:.1f} MB: median {statistics.median(took):.0f}, least {min(took):.0f} ms")
    for name, times in (("during a scrape", spans), ("without", quiet)):
        longest = [sends.longest_ms(*span) for span in times]
        waited, ran = (statistics.median(each) for each in zip(*longest, strict=True))
        least = min(each for each, _ in longest)
        print(f"longest wait of a send {name}: median {waited:.1f}, least {least:.1f} ms; of it the broker {ran:.1f}")


async def inside(folder: Path, count: int) -> None:
    """The work alone, in time of the processor; the collector as in `pyromq serve`."""
    turns = Turns()
    async with Broker(BrokerConfig(folder, port=0)) as broker:
        still = Scraping([broker.metrics()], 100_000)
        await still.text()  # maps the queues' files
        gc.freeze()
        gc.set_threshold(10_000, 5, 20)
        for name in ("still", "moved"):
            took, began = [], time.monotonic_ns()
            for _ in range(count):
                scraping = still if name == "still" else Scraping([broker.metrics()], 100_000)
                begun = time.thread_time()
                await scraping.text()
                took.append((time.thread_time() - begun) * 1000)
            (longest,) = turns.longest_ms(began, time.monotonic_ns())
            cost = f"{statistics.median(took):.0f} ms of the processor, least {min(took):.0f}"
            print(f"groups that have {name}: {cost}; longest turn of the loop {longest:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})
    with folder_for_now() as folder:
        fairness_requests.furnish(folder)
        behind(folder)
        live(folder, options.rounds)
        asyncio.run(inside(folder, options.rounds))


if __name__ == "__main__":
    main()
