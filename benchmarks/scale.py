"""How far one broker and one name server carry: the cost of a request, memory and start as one thing grows.

    scale.py [CURVE ...] [--most N] [--keep FILE]     (`make bench T=scale`)

Costs are processor time of the server's event loop, so a generator in Python is quick enough. A point that does not fit
below `--most` is left out. `--keep` replaces the measured curves in a table (scale.tsv), from which
`scripts/documentation/curves.py` draws. Folders lie in $TMPDIR, as those of all benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loads import timed_load
from loads.plain_send import plain_send
from pyromq.clock import SystemClock
from pyromq.message import StoredMessage, pack_address
from pyromq.net.channel import Channel, connect
from pyromq.remoting.bodies import (
    BrokerRegistration,
    ConsumerEntry,
    HeartbeatBody,
    Subscription,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import Heartbeat, PullMessage, RegisterBroker, RouteOfTopic, SendMessageV2
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from report import print_machine, progress
from servers import Server, folder_for_now, our_server

REQUESTS = 200_000  # of a measurement; each topic or queue gets one at least
IN_FLIGHT = 256
IDLE_SECONDS = 3.0
LOAD_SECONDS = 120.0
BODY = b"x" * 128
QUEUES = 8
AUTO_CREATED = "bench"


@dataclass
class Curve:
    """What grows, and the figures of each point: a row of names and numbers."""

    title: str
    points: list[dict[str, float]] = field(default_factory=list)

    def add(self, **figures: float) -> None:
        self.points.append(figures)
        progress(f"{self.title}: {figures}")


async def topics(most: int) -> Curve:
    """Sends and pulls that take topics of 8 queues in turn."""
    curve = Curve("topics of 8 queues")
    for count in steps(1, min(most, 10_000)):
        names = [f"topic-{number:05}" for number in range(count)]
        with folder_for_now() as folder:
            write_topics(folder, names, QUEUES)
            curve.add(topics=count, **await requests_in_turn(folder, [(name, 0) for name in names]))
    return curve


async def queues(most: int) -> Curve:
    """Sends and pulls that take the queues of one topic in turn."""
    curve = Curve("queues of one topic")
    for count in steps(1, min(most, 10_000)):
        with folder_for_now() as folder:
            write_topics(folder, ["wide"], count)
            curve.add(queues=count, **await requests_in_turn(folder, [("wide", queue) for queue in range(count)]))
    return curve


async def requests_in_turn(folder: Path, places: list[tuple[str, int]]) -> dict[str, float]:
    """Return what a send and a pull cost when they take places in turn, then start and memory with all that."""
    turns = [places[number % len(places)] for number in range(max(REQUESTS, len(places)))]
    figures: dict[str, float] = {}
    with our_server(folder) as server:
        before = server.resident_mb()[0]
        async with channel_to(server) as channel:
            cost = loop_seconds(server)
            await burst(channel, (send(*place) for place in places))  # the first message of a queue makes its files
            figures["first_us"] = (loop_seconds(server) - cost) * 1e6 / len(places)
            for name, make in (("send_us", send), ("pull_us", pull)):
                await burst(channel, (make(*place) for place in turns[: len(places)]))
                cost = loop_seconds(server)
                await burst(channel, (make(*place) for place in turns))
                figures[name] = (loop_seconds(server) - cost) * 1e6 / len(turns)
        figures["own_mb"] = server.resident_mb()[0]
        figures["kb_each"] = max(0.0, figures["own_mb"] - before) * 1024 / len(places)
    with our_server(folder) as server:
        figures["start_s"] = server.ready_seconds
    return figures


async def groups(most: int) -> Curve:
    """Groups with a stored offset; each point is a start with them all."""
    curve = Curve("groups, each with an offset in one topic")
    for count in steps(10, min(most, 10_000)):
        with folder_for_now() as folder:
            write_topics(folder, ["wide"], QUEUES)
            names = [f"group-{number:05}" for number in range(count)]
            write_json(folder, "consumerOffset.json", "offsetTable", {f"wide@{name}": {"0": 0} for name in names})
            table = {name: {"groupName": name} for name in names}
            write_json(folder, "subscriptionGroup.json", "subscriptionGroupTable", table)
            with our_server(folder) as server:
                async with channel_to(server) as channel:
                    cost = server.cpu_seconds()
                    await burst(channel, (beat(name) for name in names))
                    curve.add(
                        groups=count,
                        beat_us=(server.cpu_seconds() - cost) * 1e6 / count,
                        own_mb=server.resident_mb()[0],
                        start_s=server.ready_seconds,
                        idle_percent=await idle_percent(server),
                    )
    return curve


async def connections(most: int) -> Curve:
    """Open connections, each of a member of its own; all members are of one group of broadcasting consumers."""
    curve = Curve("open connections")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for count in steps(10, min(most, 10_000, hard - 200)):
        with folder_for_now() as folder:
            write_topics(folder, ["wide"], QUEUES)
            with our_server(folder) as server:
                before = server.resident_mb()[0]
                opened = [await open_channel(server) for _ in range(count)]
                idle = server.resident_mb()[0] - before
                cost = server.cpu_seconds()
                for number, channel in enumerate(opened):
                    await burst(channel, [beat(f"group-{number % 100}", client=f"member-{number}")])
                beats = server.cpu_seconds() - cost
                curve.add(
                    connections=count,
                    kb_idle=idle * 1024 / count,
                    kb_member=(server.resident_mb()[0] - before) * 1024 / count,
                    beat_us=beats * 1e6 / count,
                    idle_percent=await idle_percent(server),
                )
                for channel in opened:
                    await channel.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return curve


async def log(most: int) -> Curve:
    """Start and memory with a log of so many GiB: a record in each file, and holes behind it."""
    curve = Curve("GiB of log")
    for gib in steps(1, min(most, 100)):  # each file has 32 MiB of allocated space
        with folder_for_now() as folder:
            fill_stopped(folder, ["wide"], 1, gib)
            with our_server(folder) as server:
                curve.add(gib=gib, start_s=server.ready_seconds, own_mb=server.resident_mb()[0])
    return curve


async def start(most: int) -> Curve:
    """Start and memory with topics of 8 queues, a message in each queue, and 100 GiB of log with holes."""
    curve = Curve("queues with messages, 100 GiB of log")
    for count in steps(10, min(most, 10_000)):
        with folder_for_now() as folder:
            names = [f"topic-{number:05}" for number in range(count)]
            write_topics(folder, names, QUEUES)
            fill_stopped(folder, names, QUEUES, 100)
            with our_server(folder) as server:
                own = server.resident_mb()[0]
                curve.add(queues=count * QUEUES, start_s=server.ready_seconds, own_mb=own)
    return curve


async def timers(most: int) -> Curve:
    """Messages that wait for their delivery time, within a month."""
    curve = Curve("pending scheduled messages")
    for count in steps(1_000, most * 1_000):
        with folder_for_now() as folder:
            with our_server(folder) as server:
                cost = server.cpu_seconds()
                timed_load.load(server.port, timed_load.frames_of("bench", "TIMER_DELIVER_MS", in_a_month), count=count)
                figures = {"send_us": (server.cpu_seconds() - cost) * 1e6 / count}
                figures["own_mb"] = server.resident_mb()[0]
            with our_server(folder) as server:
                curve.add(pending=count, **figures, start_s=server.ready_seconds)
    return curve


async def brokers(most: int) -> Curve:
    """Broker processes, each with a name server of its own, that are sent to in turn on the machine's cores."""
    curve = Curve("broker processes")
    for count in (1, 2, 4, 8):
        if count > most:
            break
        async with contextlib.AsyncExitStack() as stack:
            servers = [stack.enter_context(our_server(core=None)) for _ in range(count)]
            channels = [await stack.enter_async_context(channel_to(server)) for server in servers]
            for channel in channels:
                await burst(channel, (send(AUTO_CREATED, number % 4) for number in range(1000)))
            costs = [server.cpu_seconds() for server in servers]
            share = REQUESTS // count
            work = (burst(channel, (send(AUTO_CREATED, n % 4) for n in range(share))) for channel in channels)
            await asyncio.gather(*work)
            used = sum(server.cpu_seconds() for server in servers) - sum(costs)
            own = sum(server.resident_mb()[0] for server in servers)
            curve.add(brokers=count, send_us=used * 1e6 / REQUESTS, own_mb=own)
    return curve


async def routes(most: int) -> Curve:
    """Brokers that register 50 topics each at one name server: a registration, and a query of a topic's route."""
    curve = Curve("brokers of one name server, 50 topics each")
    for count in (1, 10, 100, 400):  # a connection may register half of the 1,000 that a name server takes
        if count > most:
            break
        with folder_for_now() as folder, our_server(folder) as server:
            channel = await connect(str(server.namesrv), Dispatcher(), SystemClock())
            names = [f"topic-{number:03}" for number in range(50)]
            body = encode_body(
                BrokerRegistration(topics=TopicConfigTable(topics={name: TopicConfig(name=name) for name in names}))
            )
            brokers = [
                RegisterBroker(
                    broker_name=f"b-{number}", broker_address=f"127.1.{number // 250}.{number % 250}:10911",
                    cluster="c", ha_address="", broker_id=0,
                )
                for number in range(count)
            ]  # fmt: skip
            figures: dict[str, float] = {}
            for name, wanted in (
                ("register_us", [(broker, body) for broker in brokers]),
                ("again_us", [(broker, body) for broker in brokers]),
                ("route_us", [(RouteOfTopic(topic=names[number % 50]), b"") for number in range(500)]),
            ):
                cost = server.cpu_seconds()
                await burst(channel, wanted)
                figures[name] = (server.cpu_seconds() - cost) * 1e6 / len(wanted)
            route = await channel.call(RouteOfTopic(topic=names[0]), timeout=LOAD_SECONDS)
            curve.add(brokers=count, **figures, route_kb=len(route.body) / 1024, own_mb=server.resident_mb()[0])
            await channel.close()
    return curve


CURVES: dict[str, Callable[[int], Coroutine[Any, Any, Curve]]] = {
    each.__name__: each for each in (topics, queues, groups, connections, log, start, timers, brokers, routes)
}


def steps(first: int, most: int) -> Iterable[int]:
    while first <= most:
        yield first
        first *= 10


def write_topics(folder: Path, names: list[str], queue_count: int) -> None:
    config = {"readQueueNums": queue_count, "writeQueueNums": queue_count, "perm": 6}
    write_json(folder, "topics.json", "topicConfigTable", {name: {"topicName": name, **config} for name in names})


def write_json(folder: Path, file: str, table: str, content: dict[str, Any]) -> None:
    """Write one of RocketMQ's tables before the first start."""
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / file).write_text(json.dumps({table: content}))


def fill_stopped(folder: Path, names: list[str], queue_count: int, gib: int) -> None:
    """Fill the store of a stopped broker: a message in each queue, and a log of so many files of 1 GiB."""
    address = pack_address("127.0.0.1", 10911)
    store = MessageStore(StoreConfig(folder), SystemClock(), store_address=address)
    store.open()
    places = [(name, queue_id) for name in names for queue_id in range(queue_count)]
    for topic, queue_id in [*places, *[places[-1]] * (gib - 1)]:
        if store.max_log_offset and topic == places[-1][0] and store.max_offset(*places[-1]):
            store._log._roll(store._log.files.capacity_end)  # ends the file where it is, as the last record would
            store._log._set_limit()
        store.append(StoredMessage(topic, BODY, queue_id=queue_id, born_ms=1, born_address=address))
    store.close()


def in_a_month(number: int) -> int:
    """Return delivery times that are spread over the next 29 days."""
    return int(time.time() * 1000) + 3_600_000 + number * 2_654_435_761 % (29 * 24 * 3_600_000)


def loop_seconds(server: Server) -> float:
    """Return the processor time of the event loop's thread: flushing, in another thread, falls anywhere."""
    return int(Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text().split()[0]) / 1e9


async def open_channel(server: Server) -> Channel:
    return await connect(f"127.0.0.1:{server.port}", Dispatcher(), SystemClock())


@contextlib.asynccontextmanager
async def channel_to(server: Server) -> AsyncIterator[Channel]:
    channel = await open_channel(server)
    yield channel
    await channel.close()


async def burst(channel: Channel, requests: Iterable[tuple[Any, bytes]], in_flight: int = IN_FLIGHT) -> None:
    """Send requests, so many in flight, and wait for all responses; a refusal ends the run."""
    waiting: list[asyncio.Future[Any]] = []
    for header, body in requests:
        waiting.append(channel.call_soon(header, body, timeout=LOAD_SECONDS))
        if len(waiting) == in_flight:
            for each in await asyncio.gather(*waiting):
                each.check(19, 20)  # nothing new at the offset
            waiting.clear()
    for each in await asyncio.gather(*waiting):
        each.check(19, 20)


def send(topic: str, queue_id: int, body: bytes = BODY) -> tuple[SendMessageV2, bytes]:
    return plain_send(topic, queue_id), body


def pull(topic: str, queue_id: int) -> tuple[PullMessage, bytes]:
    header = PullMessage(
        consumer_group="scale", topic=topic, queue_id=queue_id, queue_offset=0, max_count=1, sys_flag=4,
        commit_offset=0, suspend_ms=0, subscription_version=0, subscription="*", expression_type="TAG",
    )  # fmt: skip
    return header, b""


def beat(group: str, client: str | None = None) -> tuple[Heartbeat, bytes]:
    entry = ConsumerEntry(group=group, subscriptions=[Subscription(topic="wide", version=1)])
    return Heartbeat(), encode_body(HeartbeatBody(client_id=client or f"client-{group}", consumers=[entry]))


async def idle_percent(server: Server) -> float:
    """Return the share of a core that the server takes with no requests but heartbeats of its own."""
    cost = server.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    return (server.cpu_seconds() - cost) / IDLE_SECONDS * 100


def print_curve(curve: Curve) -> None:
    names = list(curve.points[0])
    print(f"\n{curve.title}\n\n| {' | '.join(names)} |\n|{'---:|' * len(names)}")
    for point in curve.points:
        print(
            "| "
            + " | ".join(f"{point[name]:,.4g}" if point[name] < 1000 else f"{point[name]:,.0f}" for name in names)
            + " |"
        )


def keep(curve: Curve, name: str, file: Path) -> None:
    """Replace the lines of a curve in a table of measured curves: curve, figure, what has grown to, value."""
    lines = file.read_text().splitlines() if file.exists() else []
    kept = [line for line in lines if line.split("\t")[0] != name]
    grows = next(iter(curve.points[0]))
    for point in curve.points:
        kept += [f"{name}\t{key}\t{point[grows]:g}\t{value:.4g}" for key, value in point.items() if key != grows]
    file.write_text("\n".join(kept) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", choices=[[], *CURVES], default=[], metavar="CURVE", help=", ".join(CURVES))
    parser.add_argument("--most", type=int, default=10_000, help="largest point of a curve")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="table in which the curves are replaced")
    options = parser.parse_args()
    print_machine()
    for name in options.curves or CURVES:
        curve = asyncio.run(CURVES[name](options.most))
        progress("")
        if not curve.points:
            continue  # all points lie above --most
        print_curve(curve)
        sys.stdout.flush()
        if options.keep:
            keep(curve, name, options.keep)


if __name__ == "__main__":
    main()
