"""The work for a message happens once: real SQLite, and PostgreSQL and Redis where this machine has their servers."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import wait_until

from pyromq import Once, RetryLater, UsageError
from pyromq.testing.fake_clock import FakeClock

DAY_SECONDS = 86_400


def message(number: int = 1, keys: str = "order-17") -> Any:
    return SimpleNamespace(message_id=f"7F00000100{number:022X}", keys=[keys])


class Lite:
    """SQLite in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)

    def add(self, connection: Any, amount: int) -> None:
        connection.cursor().execute(f"insert into sums values ({amount})")

    def rows(self, statement: str) -> list[Any]:
        connection = self.connect()
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = cursor.fetchall()
        connection.close()
        return rows

    def start(self) -> None:
        connection = self.connect()
        connection.cursor().execute("create table sums (amount integer)")
        connection.commit()
        connection.close()


class Postgres(Lite):
    """A PostgreSQL of this test run, behind a socket in its folder."""

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(host=str(self.path.parent), dbname="postgres", user="postgres")


def _tool(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@pytest.fixture(scope="module")
def postgres_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
    initdb, server = _tool("initdb"), _tool("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")
    folder = Path(tmp_path_factory.mktemp("pg"))
    who = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}  # its server refuses to run as root
    if who:
        shutil.chown(folder, **who)
        for parent in folder.parents[:3]:
            parent.chmod(parent.stat().st_mode | 0o011)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, **who}
    subprocess.run([initdb, "-D", folder / "data", "-U", "postgres", "-A", "trust", "-N"], check=True, **quiet)
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    process = subprocess.Popen([server, "-D", folder / "data", *options], **quiet)
    for _ in range(600):
        with contextlib.suppress(psycopg.OperationalError):  # it has a socket before it is ready
            Postgres(folder).connect().close()
            break
        time.sleep(0.05)
    yield folder
    process.terminate()
    process.wait(30)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Lite:
    if request.param == "sqlite":
        found = Lite(tmp_path)
    else:
        found = Postgres(request.getfixturevalue("postgres_folder"))
        connection = found.connect()
        connection.execute("drop table if exists sums, pyromq_done")
        connection.commit()
        connection.close()
    found.start()
    return found


@pytest.fixture
def once_of(database: Lite) -> Iterator[Callable[..., Once]]:
    made: list[Once] = []

    def make(group: str = "billing", connect: Callable[[], Any] = database.connect, **options: Any) -> Once:
        made.append(Once(connect, group, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_second_delivery_finds_the_work_done(database, once_of):
    once = once_of()
    seen = []
    for _ in range(3):
        with once(message()) as connection:
            seen.append(connection is not None)
            if connection is not None:
                database.add(connection, 5)
    assert seen == [True, False, False]
    assert database.rows("select amount from sums") == [(5,)]


def test_failed_work_leaves_neither_rows_nor_mark(database, once_of):
    once = once_of()
    with pytest.raises(ZeroDivisionError), once(message()) as connection:
        database.add(connection, 5)
        1 / 0  # noqa: B018
    assert database.rows("select amount from sums") == []
    with once(message()) as connection:
        assert connection is not None


def test_groups_and_keys_are_apart(once_of):
    by_key = once_of(key=lambda message: message.keys[0])
    seen = []
    for once, each in (
        (once_of(), message(1)),
        (once_of(), message(2)),
        (once_of("mail"), message(1)),
        (by_key, message(3, "order-1")),
        (by_key, message(4, "order-1")),
        (by_key, message(5, "bücher'; drop table sums")),
    ):
        with once(each) as connection:
            seen.append(connection is not None)
    assert seen == [True, True, True, True, False, True]


def test_of_many_threads_one_does_the_work(database, once_of):
    once = once_of()
    at_once = threading.Barrier(6)
    errors = []

    def deliver() -> None:
        try:
            at_once.wait(30)
            with once(message()) as connection:
                if connection is not None:
                    time.sleep(0.05)
                    database.add(connection, 1)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=deliver) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert database.rows("select amount from sums") == [(1,)]


async def test_marks_leave_with_their_window(database, once_of):
    clock = FakeClock(1_764_000_000_000)
    once = once_of(window_seconds=DAY_SECONDS, clock=clock)
    for number, days in ((1, 0), (2, 0.9), (3, 0.2)):
        await clock.advance(days * DAY_SECONDS)
        with once(message(number)):
            pass
    assert len(database.rows("select message_key from pyromq_done")) == 2
    with once(message(1)) as connection:
        assert connection is not None


def test_a_broken_connection_is_replaced(database, once_of):
    opened = []

    def connect() -> Any:
        opened.append(database.connect())
        return opened[-1]

    once = once_of(connect=connect)
    with once(message(1)):
        pass
    opened[0].close()
    with pytest.raises(Exception, match=r"(?i)closed"), once(message(2)):
        pass
    with once(message(2)) as connection:
        assert connection is opened[1]


def test_connections_that_commit_by_themselves_are_refused(tmp_path):
    once = Once(lambda: sqlite3.connect(tmp_path / "a.db", isolation_level=None), "billing")
    with pytest.raises(UsageError, match="switch autocommit off"), once(message()):
        pass


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    redis = pytest.importorskip("redis", reason="needs redis: pip install redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is missing: apt-get install redis-server")
    socket = tmp_path_factory.mktemp("redis") / "s"
    arguments = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(socket.parent)]
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
    while not socket.exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield lambda **options: redis.Redis(unix_socket_path=str(socket), **options)
    process.terminate()
    process.wait(30)


class TestRedis:
    """Marks in Redis: the claim, the mark, and what is left by a process that died."""

    @pytest.mark.parametrize("decode", [False, True])
    def test_the_second_delivery_finds_the_work_done(self, redis_server, decode):
        once = Once(redis_server(decode_responses=decode), f"billing-{decode}")
        seen = []
        for _ in range(3):
            with once(message()) as client:
                seen.append(client is not None)
        assert seen == [True, False, False]

    def test_failed_work_is_done_again(self, redis_server):
        once = Once(redis_server(), "failing")
        with pytest.raises(ZeroDivisionError), once(message()):
            1 / 0  # noqa: B018
        with once(message()) as client:
            assert client is not None

    def test_what_another_works_on_comes_later(self, redis_server):
        first, second = Once(redis_server(), "busy"), Once(redis_server(), "busy")
        with first(message()):
            with pytest.raises(RetryLater, match="in progress in another process"), second(message()):
                pass
            with second(message(2)) as client:
                assert client is not None

    def test_the_claim_of_a_dead_process_ends(self, redis_server):
        client, name = redis_server(), f"pyromq:done:dead:{message().message_id}"
        once = Once(client, "dead")
        client.set(name, "somebody", ex=3600)
        with pytest.raises(RetryLater), once(message()):
            pass
        client.pexpire(name, 1)
        wait_until(lambda: not client.exists(name))
        with once(message()) as client:
            assert client is not None

    def test_work_that_outlives_its_claim_removes_no_claim_of_another(self, redis_server):
        client = redis_server()
        name = f"pyromq:done:slow:{message().message_id}"
        once = Once(client, "slow")
        with pytest.raises(ZeroDivisionError), once(message()):
            client.set(name, "another")
            1 / 0  # noqa: B018
        assert client.get(name) == b"another"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"store": 5}, "store=int is neither a function"),
        ({"group": ""}, "group is empty"),
        ({"window_seconds": 0}, "window_seconds=0 is not between"),
        ({"window_seconds": float("nan")}, "window_seconds=nan is not between"),
        ({"claim_seconds": -1}, "claim_seconds=-1 is not between"),
    ],
)
def test_invalid_arguments_are_named(wanted, text):
    given = {"store": sqlite3.connect, "group": "billing", **wanted}
    with pytest.raises(UsageError, match=text):
        Once(given.pop("store"), given.pop("group"), **given)


def test_a_function_that_returns_a_client_of_redis_is_refused_with_the_right_call():
    redis = pytest.importorskip("redis", reason="needs redis: pip install redis")
    once = Once(redis.Redis, "billing")  # a function that returns a client
    with pytest.raises(UsageError, match="pass a client of Redis itself instead of a function"), once(message()):
        pass


@pytest.mark.parametrize("key", ["", "k" * 256, None, 17, b"k", "a\0b"])
def test_invalid_keys_are_named(tmp_path, key):
    once = Once(Lite(tmp_path).connect, "billing", key=lambda message: key)
    with pytest.raises(UsageError, match=r"key\(message\) returned .* for message 7F0000"):
        once(message())


def test_another_database_is_refused_by_name():
    once = Once(threading.Lock, "billing")
    with pytest.raises(UsageError, match="connections of _thread are not supported"), once(message()):
        pass
