"""Cuts are one-way, hold for open connections, and for those of killed processes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from tests.failover.links import CLIENTS, Links, need_links
from tests.processes import free_port
from tests.waiting import wait_until

# Answers each line with the same line, and with how many it got; says when it listens.
ECHO = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
def serve(connection):
    with connection, connection.makefile("rwb") as lines:
        for line in lines:
            print("got", line.decode().strip(), flush=True)
            lines.write(line)
            lines.flush()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
# Connects, sends each line of its input, and prints what it gets.
CLIENT = """
import socket, sys, threading
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=None)
print("connected", flush=True)
def read():
    for line in connection.makefile("rb"):
        print("answer", line.decode().strip(), flush=True)
    print("closed", flush=True)
threading.Thread(target=read, daemon=True).start()
for line in sys.stdin.buffer:
    connection.sendall(line)
"""
SHORT_SECONDS = 0.5  # long enough for a packet on loopback, and for its first repetition


class Machine:
    """A process of one machine, and the lines that it printed."""

    def __init__(self, program, port, group, folder, name):
        self._output = folder / name
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, str(port)], stdin=subprocess.PIPE, stdout=output, group=group
            )

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def printed(self, line):
        return line in self._output.read_text().splitlines()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


@pytest.fixture
def links():
    need_links()
    with Links() as links:
        yield links


@pytest.fixture
def machines(links, tmp_path):
    """B listens; A is connected to it, and a connection of the test's own process."""
    port = free_port()
    b = Machine(ECHO, port, links.add("b", [port]), tmp_path, "b")
    wait_until(lambda: b.printed("ready"))
    a = Machine(CLIENT, port, links.add("a", []), tmp_path, "a")
    wait_until(lambda: a.printed("connected"))
    with socket.create_connection(("127.0.0.1", port), timeout=SHORT_SECONDS) as own:
        yield a, b, own
    a.end()
    b.end()


def exchanged(own, text):
    """Whether the test's own connection gets its answer soon."""
    own.sendall(text + b"\n")
    try:
        return own.recv(100) == text + b"\n"
    except TimeoutError:
        return False


@pytest.mark.slow
def test_what_one_machine_sends_is_dropped_until_it_is_healed(links, machines):
    a, b, own = machines
    links.cut("a", "b")
    a.say("one")
    assert exchanged(own, b"own")
    assert not b.printed("got one")
    links.heal()
    wait_until(lambda: a.printed("answer one"))


@pytest.mark.slow
def test_answers_are_dropped_alone(links, machines):
    a, b, own = machines
    links.cut("b", "a")
    a.say("one")
    wait_until(lambda: b.printed("got one"))
    assert exchanged(own, b"own")
    assert not a.printed("answer one")
    links.heal()
    wait_until(lambda: a.printed("answer one"))


@pytest.mark.slow
def test_a_machine_without_cable_is_reached_by_nobody_and_its_death_is_not_seen(links, machines):
    a, b, own = machines
    links.isolate("b")
    a.say("one")
    assert not exchanged(own, b"own")
    assert not b.printed("got one")
    b.process.kill()
    b.process.wait()
    with pytest.raises(TimeoutError):
        socket.create_connection(own.getpeername(), timeout=SHORT_SECONDS)
    assert not a.printed("closed")
    links.heal()
    wait_until(lambda: a.printed("closed") or a.process.poll() is not None)


@pytest.mark.slow
def test_the_test_is_a_machine_too(links, machines):
    a, b, own = machines
    links.cut_both(CLIENTS, "b")
    assert not exchanged(own, b"own")
    a.say("one")
    wait_until(lambda: a.printed("answer one"))
    assert not b.printed("got own")
