"""The module of Windows, and clients, commands and console in processes that have only that system's names."""

import asyncio
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from pyromq.clock import SystemClock
from pyromq.platforms import windows
from pyromq.store import disk
from pyromq.store.json_file import JsonFile
from pyromq.testing import BlockingCluster

ROOT = Path(__file__).parents[2]
CLIENTS = """
import asyncio, sys
from pyromq import *

namesrv, topic = sys.argv[1:]
with Producer("p", namesrv) as producer:
    assert producer.send(Message(topic, b"1", tags="a")).status is SendStatus.OK
    assert producer.send(Message(topic, b"2" * 20_000)).status is SendStatus.OK

async def main():
    got = asyncio.Queue()

    async def take(messages):
        for message in messages:
            got.put_nowait(len(message.body))

    async with AsyncProducer("p", namesrv) as producer, AsyncAdmin(namesrv) as admin:
        await producer.send(Message(topic, b"3"))
        assert topic in await admin.topics()
        async with AsyncConsumer("g", namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST)) as consumer:
            consumer.subscribe(topic, take)
            return sorted([await got.get() for _ in range(3)])

print(asyncio.run(main()))
"""


@pytest.fixture(scope="module")
def namesrv():
    with BlockingCluster(clock=SystemClock()) as cluster:
        cluster.admin().create_topic("orders", 2)
        yield cluster.namesrv


def of_windows(*arguments: str, loop: str = "proactor") -> list[str]:
    """Return the command that runs Python with the names of Windows."""
    return ["env", f"PYROMQ_TEST_LOOP={loop}", str(ROOT / "scripts/names-of"), "win32", sys.executable, *arguments]


def run(*arguments: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(of_windows(*arguments, **more), capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["selector", "proactor"])
def test_clients_send_and_consume_in_both_event_loops(namesrv, loop):
    done = run("-c", CLIENTS, namesrv, f"orders-{loop}", loop=loop)
    assert (done.stdout, done.returncode) == ("[1, 1, 20000]\n", 0), done.stderr


@pytest.mark.slow
def test_commands_work(namesrv):
    sent = run("-m", "pyromq", "send", "letters", "hello", "--namesrv", namesrv)
    assert sent.stdout.startswith("SEND_OK"), sent.stderr
    read = run("-m", "pyromq", "consume", "letters", "--from", "beginning", "--count", "1", "--namesrv", namesrv)
    assert read.stdout == "hello\n", read.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["serve", "serve namesrv", "serve broker --namesrv 127.0.0.1:1", "store check .", "store repair ."]
)
def test_servers_and_stores_say_where_they_run(command):
    done = run("-m", "pyromq", *command.split())
    assert done.returncode == 1
    assert "need Linux or macOS" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_console_serves_pages(namesrv, tmp_path):
    command = of_windows("-m", "pyromq", "console", "--port", "0", "--data", str(tmp_path), "--namesrv", namesrv)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
            with urllib.request.urlopen(f"{address}topics", timeout=30) as page:
                assert "orders" in page.read().decode()
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("10.1.2.3@47#99", "10.1.2.3@47#99"),
        ("fe80::1@47", "fe80%3A%3A1@47"),
        ("a|b", "a%7Cb"),
        ("%RETRY%g", "%RETRY%g"),
        ("end.", "end%2E"),
    ],
)
def test_names_of_files_are_made_valid(text, name):
    assert windows.file_name(text) == name


def test_small_files_are_written_and_read_without_reads_at_a_position(tmp_path, monkeypatch):
    local = disk.LocalDisk()
    for name in ("read", "write", "sync", "close", "sync_folder"):
        monkeypatch.setattr(local, name, getattr(windows, name))
    file = JsonFile(tmp_path / "folder" / "offsets.json", local)
    for content in (b'{"a": 1}', b'{"a": 22222}', b"{}"):
        file.save(content)
        assert file.load() == content


async def test_signals_call_and_can_be_given_back(monkeypatch):
    handlers = {}
    stopped = asyncio.Event()
    with monkeypatch.context() as patched:  # asyncio itself sets a handler at the end of this test
        patched.setattr(
            windows.signal, "signal", lambda number, handler: handlers.update({number: handler}) or "before"
        )
        end = windows.on_stop_signals(stopped.set)
        handlers[windows.signal.SIGINT](windows.signal.SIGINT, None)
        await stopped.wait()
        end()
    assert set(handlers.values()) == {"before"}


def test_what_only_servers_use_is_refused():
    with pytest.raises(OSError, match="need Linux or macOS"):
        windows.lock(os.open(os.devnull, os.O_RDONLY))
