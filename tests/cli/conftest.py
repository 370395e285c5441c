"""The command line run in this process against a real cluster, and servers as real processes."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.cli.main import run
from pyromq.testing import BlockingCluster

PYROMQ = (sys.executable, "-m", "pyromq")


class Served:
    """A cluster whose event loop runs in another thread; `do` runs its coroutines there."""

    def __init__(self, **settings):
        self.blocking = BlockingCluster(**settings)
        self.blocking.__enter__()
        self.cluster = self.blocking.cluster
        self.namesrv = self.cluster.namesrv
        self.do = self.blocking.run

    @property
    def broker(self):
        return self.cluster.broker

    def pass_time(self, ms):
        self.blocking.advance(ms / 1000)

    def now_ms(self):
        return self.cluster.clock.now_ms()

    def close(self):
        self.blocking.__exit__()


@pytest.fixture(scope="module")
def shared():
    with closing(Served()) as served:
        yield served


@pytest.fixture
def served_with():
    """Serve a cluster with settings of its own: `served_with(brokers=0)`."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(closing(Served(**settings)))


@pytest.fixture
def served(shared, monkeypatch):
    """The cluster that all tests share, named by the environment: each test takes topics of its own."""
    monkeypatch.setenv("NAMESRV_ADDR", shared.namesrv)
    return shared


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()


@pytest.fixture
def cli(monkeypatch):
    """Run one command in this process: `cli("send", "orders", "hello")` gives exit code and both outputs."""

    def call(*arguments, stdin=b""):
        out, err, entered = (io.TextIOWrapper(io.BytesIO(content), "utf-8") for content in (b"", b"", stdin))
        monkeypatch.setattr(sys, "stdin", entered)
        with redirect_stdout(out), redirect_stderr(err):
            code = run(arguments)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode(errors="replace"))  # bodies go out as they are
        return Outcome(code, *texts)

    return call


class Server:
    """`pyromq serve` as a process, ready."""

    def __init__(self, *arguments, **variables):
        self.process = start("serve", *arguments, **variables)
        self.banner = []
        for line in self.process.stdout:
            self.banner.append(line.rstrip())
            if line.startswith("ready in"):
                break
        text = "\n".join(self.banner)
        assert self.banner, self.process.stderr.read()
        found = re.search(r"name server  (\S+)", text)
        self.namesrv = found and found[1]
        found = re.search(r"broker       (\S+)", text)
        self.broker = found and found[1]

    def stop(self, number=signal.SIGTERM):
        """Send a signal and return exit code and standard error."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS), self.process.stderr.read()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()


def start(*arguments, stdin=subprocess.DEVNULL, **variables):
    """Start a command as a process of its own, with these variables of the environment besides the usual ones."""
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"} | variables
    return subprocess.Popen(
        [*PYROMQ, *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture
def start_process():
    """Start a command as a process; killed after the test if it still runs."""
    processes = []

    def begin(*arguments, **options):
        processes.append(start(*arguments, **options))
        return processes[-1]

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was not written to the end
                    pipe.close()


@pytest.fixture
def call():
    """Run a command as a process of its own, to its end."""

    def run_process(*arguments):
        process = start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return Outcome(process.returncode, out, err)

    return run_process


@pytest.fixture
def serve(tmp_path):
    """Start a server on free ports with this test's folder; more arguments may be given. Ended with the test."""
    servers = []

    def begin(*arguments, data=tmp_path / "data", ports=("--namesrv-port", "0", "--broker-port", "0"), **variables):
        server = Server(*arguments, "--data", data, *ports, **variables)
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.close()


@pytest.fixture
def unused_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
