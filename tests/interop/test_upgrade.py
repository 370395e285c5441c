"""docs/how-to/upgrade.md, walked through: two Java brokers become ours one by one, under traffic, and one goes back."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from tests.interop.peers.java import Driver, Tools, furnish
from tests.interop.peers.servers import genuine
from tests.processes import Program, free_port
from tests.waiting import wait_until

from pyromq import Admin, ConsumeFrom, Consumer, ConsumerConfig, Message, MessageQueue, MQError, Producer, PullConsumer
from pyromq.errors import SystemBusy

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "orders"
QUEUES = 4
PARKED_AT = 5  # where a group without members waits in each queue
FOREVER = 1_000_000
PAUSE_SECONDS = 0.005  # between two sends
GROUPS = ("our-group", "java-group")


class Broker:
    """One broker, by one file of settings for both kinds of program."""

    def __init__(self, folder: Path, name: str, namesrv: str) -> None:
        self.name = name
        self.folder = folder / name
        self._home = furnish(folder / f"home-{name}")
        self._port = free_port(-2, 1)
        self._file = folder / f"{name}.conf"
        self._program: Program | None = None
        self.configure(namesrv)

    def configure(self, namesrv: str) -> None:
        values = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.name,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": self._port,
            "haListenPort": self._port + 1,
            "namesrvAddr": namesrv,
            "storePathRootDir": self.folder,
            "storePathCommitLog": self.folder / "commitlog",
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            "deleteWhen": "04",
            "fileReservedTime": 48,
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    def start_java(self) -> None:
        self._program = genuine(self._home, "broker", self._file, heap="512m")

    def start_ours(self) -> None:
        arguments = (sys.executable, "-u", "-m", "pyromq", "serve", "broker", "--config", self._file)
        self._program = Program(arguments, "ready in", os.environ)
        self._program.wait_until_ready()

    def stop(self) -> None:
        if self._program:
            self._program.stop()
            self._program = None

    def check(self) -> None:
        """Have `pyromq store check` look at the stopped broker's folder."""
        subprocess.run([sys.executable, "-m", "pyromq", "store", "check", self.folder], check=True, capture_output=True)


class Traffic:
    """A producer and two groups, ours and Java's, that go on while brokers come and go."""

    def __init__(self, namesrv: str, home: Path, first: int) -> None:
        self.confirmed: dict[int, str] = {}  # number -> broker
        self.ours: Counter[int] = Counter()
        self.failures: list[MQError] = []
        self._next = first
        self._namesrv = namesrv
        self._home = home
        self._over = threading.Event()
        self._sender = threading.Thread(target=self._send)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        consumer = self._stack.enter_context(Consumer(GROUPS[0], self._namesrv, config=config))
        consumer.subscribe(TOPIC, lambda messages: self.ours.update(int(message.body) for message in messages))
        self._java = Driver(self._home, self._namesrv).start("push", TOPIC, GROUPS[1], "*", FOREVER, FOREVER)
        self._stack.callback(self._java.kill)
        self._sender.start()
        self._stack.callback(self._stop_sending)
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def _stop_sending(self) -> None:
        self._over.set()
        self._sender.join()

    def _send(self) -> None:
        with Producer("sellers", self._namesrv) as producer:
            while not self._over.wait(PAUSE_SECONDS):
                try:
                    sent = producer.send(Message(TOPIC, b"%d" % self._next))
                    self.confirmed[self._next] = sent.queue.broker_name
                except SystemBusy:  # a Java broker on a slow machine: nothing is stored, and the sender tries again
                    continue
                except MQError as error:
                    self.failures.append(error)
                self._next += 1

    @property
    def java(self) -> Counter[int]:
        lines = [json.loads(line) for line in list(self._java.output) if line.startswith("{")]
        return Counter(int(base64.b64decode(line["body"])) for line in lines if "body" in line)

    def flows(self, *brokers: str, count: int = 50) -> None:
        """Wait until each of the brokers has confirmed so many more messages."""
        begun = self._next

        def has_come() -> bool:
            news = Counter(broker for number, broker in self.confirmed.copy().items() if number >= begun)
            return all(news[broker] >= count for broker in brokers)

        wait_until(has_come)

    def end(self) -> int:
        """Stop sending, wait until both groups have everything; return the first number that was not sent."""
        self._stop_sending()
        wait_until(lambda: self.confirmed.keys() <= self.ours.keys() and self.confirmed.keys() <= self.java.keys())
        with Admin(self._namesrv) as admin:
            for group in GROUPS:
                wait_until(lambda: not any(each.lag for each in admin.group_progress(group, TOPIC)))  # noqa: B023
        return self._next


def parked(namesrv: str) -> dict[tuple[str, int], int]:
    with Admin(namesrv) as admin:
        progress = admin.group_progress("parked", TOPIC)
    return {(each.queue.broker_name, each.queue.queue_id): each.consumer_offset for each in progress}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_java_cluster_is_upgraded_broker_by_broker_and_one_goes_back(
    jars: None, home: Path, tmp_path: Path, stack: ExitStack
) -> None:
    java_names, our_names = (f"127.0.0.1:{free_port()}" for _ in range(2))
    file = tmp_path / "namesrv.conf"
    file.write_text(f"listenPort={java_names.rpartition(':')[2]}\nkvConfigPath={tmp_path}/kv.json\n")
    java_name_server = genuine(furnish(tmp_path / "names"), "namesrv", file, heap="128m")
    stack.callback(java_name_server.kill)
    brokers = [Broker(tmp_path, name, java_names) for name in ("broker-a", "broker-b")]
    for broker in brokers:
        stack.callback(broker.stop)
        broker.start_java()
    with Admin(java_names) as admin:
        wait_until(lambda: len(admin.cluster().brokers) == 2)
        admin.create_topic(TOPIC, QUEUES)
    parts = {(broker.name, queue): PARKED_AT for broker in brokers for queue in range(QUEUES)}

    with Traffic(java_names, home, 0) as traffic:
        traffic.flows("broker-a", "broker-b")
        with Admin(java_names) as admin:
            for name, queue in parts:
                admin.commit_offset("parked", MessageQueue(TOPIC, name, queue), PARKED_AT)
        arguments = ("serve", "namesrv", "--namesrv-port", our_names.rpartition(":")[2], "--data", tmp_path / "ours")
        our_name_server = Program([sys.executable, "-u", "-m", "pyromq", *arguments], "ready in", os.environ)
        stack.callback(our_name_server.stop)
        our_name_server.wait_until_ready()
        for broker, other in zip(brokers, reversed(brokers), strict=True):
            Tools(home, java_names).run([f"wipeWritePerm -b {broker.name}"])
            if broker is brokers[0]:  # the second one does not wait until producers are gone
                wait_until(lambda: set(list(traffic.confirmed.copy().values())[-100:]) == {"broker-b"})
            broker.stop()
            broker.check()
            broker.configure(f"{java_names};{our_names}")
            broker.start_ours()
            traffic.flows(broker.name, other.name)
            assert parked(java_names) == parts
        begun = traffic.end()
        assert traffic.failures == []
        confirmed = len(traffic.confirmed)

    with Admin(our_names) as admin:
        assert len(admin.cluster().brokers) == 2
    java_name_server.kill()
    with Traffic(our_names, home, begun) as traffic:
        traffic.flows("broker-a", "broker-b")
        going_back = brokers[1]
        going_back.stop()
        going_back.configure(our_names)
        going_back.start_java()
        traffic.flows("broker-a", "broker-b")
        assert parked(our_names) == parts
        traffic.end()
        assert traffic.failures == []
        assert min(traffic.ours) == min(traffic.java) == begun  # nothing of before comes again
        confirmed += len(traffic.confirmed)

    with PullConsumer("parked", our_names) as consumer:
        queues = consumer.queues(TOPIC)
        stored = sum(map(consumer.max_offset, queues))
        consumer.assign(queues)
        rest = 0
        while rest < stored - PARKED_AT * len(queues):
            rest += len(consumer.poll(timeout=30))
    assert stored >= confirmed
    assert rest == stored - PARKED_AT * len(queues)
