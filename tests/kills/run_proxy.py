"""`make kill-proxy`: proxy and broker under load from RocketMQ's official Python client, killed with SIGKILL in turns.

    python -m tests.kills.run_proxy 30 [--seed S]

Every message that the producer was told is stored must reach the consumers, and none may come again after its
acknowledgement was confirmed; what was counted is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import Program, free_port

from pyromq import Admin

TOPICS = ("simple", "push")  # each with one producer and the consumer of its name
LIVES_SECONDS = (0.5, 1.5)  # from ready to killed
PATIENCE_SECONDS = 90.0

CLIENT = r"""
import os, sys, time
from rocketmq import *

role, topic, address = sys.argv[1:]
config = ClientConfiguration(address, Credentials())

def say(word, number):  # one write: listeners run in several threads
    os.write(1, f"{word} {number}\n".encode())

class Listener(MessageListener):
    def consume(self, message):
        say("received", message.body.decode())
        return ConsumeResult.SUCCESS

def start(client):
    while True:
        try:
            client.startup()
            return client
        except Exception:
            time.sleep(0.2)

if role == "producer":
    producer, number = start(Producer(config, (topic,))), 0
    while True:
        number += 1
        message = Message()
        message.topic, message.body = topic, str(number).encode()
        try:
            producer.send(message)
            say("confirmed", number)
        except Exception:
            time.sleep(0.05)
elif role == "simple":
    consumer = start(SimpleConsumer(config, "simple-group"))
    consumer.subscribe(topic)
    while True:
        try:
            for message in consumer.receive(32, 15) or []:
                say("received", message.body.decode())
                consumer.ack(message)
                say("acknowledged", message.body.decode())
        except Exception:
            time.sleep(0.05)
else:
    consumer = start(PushConsumer(config, "push-group", Listener(), {topic: FilterExpression()}))
    while True:
        time.sleep(1)
"""


@dataclass
class Counts:
    """What the clients of one topic saw, by the number of the message."""

    confirmed: set[str] = field(default_factory=set)
    received: Counter[str] = field(default_factory=Counter)
    acknowledged: set[str] = field(default_factory=set)
    after_acknowledgement: int = 0

    @property
    def missing(self) -> set[str]:
        return self.confirmed - self.received.keys()

    def note(self, word: str, number: str) -> None:
        if word == "confirmed":
            self.confirmed.add(number)
        elif word == "acknowledged":
            self.acknowledged.add(number)
        elif word == "received":
            self.received[number] += 1
            self.after_acknowledgement += number in self.acknowledged

    def __str__(self) -> str:
        again = sum(self.received.values()) - len(self.received)
        return (
            f"{len(self.confirmed)} confirmed, {len(self.missing)} of them not received; {again} received again,"
            f" {self.after_acknowledgement} of them after the acknowledgement was confirmed"
        )


class Client:
    """An official client in a process of its own; what it prints is counted."""

    def __init__(self, role: str, topic: str, address: str, counts: Counts, home: Path) -> None:
        command = [sys.executable, "-c", CLIENT, role, topic, address]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "HOME": str(home)}
        )
        self._counts = counts
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            word, _, number = line.strip().partition(" ")
            self._counts.note(word, number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()


class Servers:
    """`pyromq serve` and `pyromq proxy`, on ports that they keep when they are started again."""

    def __init__(self, folder: Path) -> None:
        names, proxy = free_port(), free_port()
        self.namesrv, self.address = f"127.0.0.1:{names}", f"127.0.0.1:{proxy}"
        pyromq = (sys.executable, "-m", "pyromq")
        self._commands = {
            "broker": (
                *(*pyromq, "serve", "--data", folder / "data", "--namesrv-port", str(names)),
                *("--broker-port", str(free_port()), "--grpc-port", "0"),
            ),
            "proxy": (*pyromq, "proxy", "-n", self.namesrv, "--port", str(proxy), "--data", folder / "proxy"),
        }
        self._programs: dict[str, Program] = {}

    def start(self, name: str) -> None:
        program = self._programs[name] = Program(self._commands[name], "ready in", os.environ)
        program.wait_until_ready()

    def kill(self, name: str) -> None:
        self._programs[name].kill()

    def stop(self) -> list[int]:
        return [program.stop() for program in reversed(self._programs.values())]


def kill_again_and_again(folder: Path, kills: int, seed: int) -> dict[str, Counts]:
    """Return what was counted by topic when all that was confirmed is received, or patience has ended."""
    chance = random.Random(seed)
    counts = {topic: Counts() for topic in TOPICS}
    servers = Servers(folder)
    servers.start("broker")
    with Admin(servers.namesrv) as admin:
        for topic in TOPICS:
            admin.create_topic(topic)
    servers.start("proxy")
    consumers = [Client(topic, topic, servers.address, counts[topic], folder) for topic in TOPICS]
    producers = [Client("producer", topic, servers.address, counts[topic], folder) for topic in TOPICS]
    try:
        while not all(each.received for each in counts.values()):
            time.sleep(0.1)
        for number in range(kills):
            time.sleep(chance.uniform(*LIVES_SECONDS))
            name = ("proxy", "broker")[number % 2]
            servers.kill(name)
            servers.start(name)
            print(f"kill {number + 1}, of the {name}", *map(str, counts.values()), sep="\n  ", flush=True)
        time.sleep(1)
        for each in producers:
            each.end()
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and any(each.missing for each in counts.values()):
            time.sleep(0.1)
    finally:
        for each in (*producers, *consumers):
            each.end()
    assert servers.stop() == [0, 0]
    return counts


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("kills", type=int, nargs="?", default=30)
    options.add_argument("--seed", type=int, default=int(time.time()))
    chosen = options.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pyromq-kill-", ignore_cleanup_errors=True) as folder:
        counts = kill_again_and_again(Path(folder), chosen.kills, chosen.seed)
    print(f"{chosen.kills} kills with seed {chosen.seed} in {time.monotonic() - started:.0f} s")
    for topic, each in counts.items():
        print(f"{topic} consumer: {each}")
    return 1 if any(each.missing for each in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
