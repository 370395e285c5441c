"""The work for a message happens once: real SQLite, and PostgreSQL and Redis where this machine has their servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
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

    def connect(self, user: str = "postgres") -> Any:
        import psycopg

        return psycopg.connect(host=str(self.path.parent), dbname="postgres", user=user)


def _tool(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@pytest.fixture(scope="module")
def postgres_folder() -> Iterator[Path]:
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
    initdb, server = _tool("initdb"), _tool("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")
    # Not below pytest's folder, which the start of another pytest closes to other accounts.
    temporary = tempfile.TemporaryDirectory(prefix="pyromq-pg-")
    folder = Path(temporary.name)
    who = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}  # its server refuses to run as root
    if who:
        shutil.chown(folder, **who)
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
    temporary.cleanup()


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


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError])
def test_failed_work_leaves_neither_rows_nor_mark(database, once_of, failure):
    once = once_of()
    with pytest.raises(failure), once(message()) as connection:
        database.add(connection, 5)
        raise failure
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


async def test_a_group_keeps_its_marks_for_a_window_of_its_own(once_of):
    clock = FakeClock(1_764_000_000_000)
    longer = once_of("billing", window_seconds=7 * DAY_SECONDS, clock=clock)
    shorter = once_of("mail", window_seconds=DAY_SECONDS, clock=clock)
    for once in (longer, shorter):
        with once(message(1)):
            pass
    await clock.advance(2 * DAY_SECONDS)
    with shorter(message(2)):
        pass
    with longer(message(1)) as connection:
        assert connection is None


async def test_old_marks_are_deleted_once_an_hour(database, once_of):
    clock = FakeClock(1_764_000_000_000)
    once = once_of(window_seconds=60, clock=clock)
    left = []
    for number, seconds in enumerate((0, 600, 600, 2500)):
        await clock.advance(seconds)
        with once(message(number)):
            pass
        left.append(len(database.rows("select * from pyromq_done")))
    assert left == [1, 2, 3, 1]


def test_a_new_thread_waits_once_for_a_locked_database(tmp_path):
    statements: list[str] = []

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "a.db", timeout=0)
        connection.set_trace_callback(statements.append)
        return connection

    with Once(connect, "billing")(message(1)):
        statements.clear()
        with pytest.raises(sqlite3.OperationalError, match="locked"), Once(connect, "billing")(message(2)):
            pass
        assert not [each for each in statements if each.startswith("create")]  # it would wait twice more


def test_old_marks_that_cannot_be_deleted_fail_no_work(tmp_path):
    database = Lite(tmp_path)
    with Once(database.connect, "billing", window_seconds=0.001)(message(1)):
        pass
    with database.connect() as connection:
        connection.execute("create trigger keep before delete on pyromq_done begin select raise(abort, 'kept'); end")
    connection.close()
    time.sleep(0.01)
    once = Once(database.connect, "billing", window_seconds=0.001)
    for number in (2, 3):
        with once(message(number)) as connection:
            assert connection is not None
        with Once(lambda: sqlite3.connect(database.path, timeout=0), "others")(message(number)):  # no lock is left
            pass
    assert len(database.rows("select * from pyromq_done where consumer_group = 'billing'")) == 3
    once.close()


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


def test_a_connection_that_cannot_write_a_mark_is_replaced(tmp_path):
    class Gone(sqlite3.Connection):
        """A connection whose server is gone; as with some drivers, `rollback` does not notice."""

        is_gone = False

        def cursor(self, *arguments: Any) -> Any:
            if self.is_gone:
                raise sqlite3.OperationalError("server closed the connection")
            return super().cursor(*arguments)

    once = Once(lambda: sqlite3.connect(tmp_path / "a.db", factory=Gone), "billing")
    with once(message(1)) as connection:
        pass
    connection.is_gone = True
    with pytest.raises(sqlite3.OperationalError, match="server closed"), once(message(2)):
        pass
    with once(message(2)) as connection:
        assert connection is not None
    once.close()


def test_connections_that_commit_by_themselves_are_refused_without_a_mark(tmp_path):
    once = Once(lambda: sqlite3.connect(tmp_path / "a.db", isolation_level=None), "billing")
    with pytest.raises(UsageError, match="switch autocommit off"), once(message()):
        pass
    with Once(lambda: sqlite3.connect(tmp_path / "a.db"), "billing")(message()) as connection:
        assert connection is not None


def test_a_second_block_in_the_same_thread_is_refused(database, once_of):
    once = once_of()
    with pytest.raises(UsageError, match="a block is open in this thread"), once(message(1)), once(message(2)):
        pass
    for number in (1, 2):
        with once(message(number)) as connection:
            assert connection is not None


async def test_blocks_of_two_coroutines_do_not_share_a_transaction(once_of):
    once = once_of()
    released = asyncio.Event()

    async def fail() -> None:
        with once(message(1)):
            await released.wait()
            raise ZeroDivisionError

    failing = asyncio.create_task(fail())
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="do not await"), once(message(2)):
        pass
    released.set()
    with pytest.raises(ZeroDivisionError):
        await failing
    with once(message(1)) as connection:
        assert connection is not None


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_block_that_ends_its_transaction_is_named(once_of, ending):
    once = once_of()
    with pytest.raises(UsageError, match="the block has ended the transaction"), once(message()) as connection:
        getattr(connection, ending)()
    with once(message()) as connection:
        assert (connection is None) is (ending == "commit")


def test_work_with_a_failed_statement_is_not_taken_for_done(database, once_of):
    if not isinstance(database, Postgres):
        pytest.skip("SQLite commits a transaction with a failed statement")
    once = once_of()
    with pytest.raises(UsageError, match="a statement in the block has failed"), once(message()) as connection:
        database.add(connection, 5)
        with contextlib.suppress(Exception):
            connection.execute("select 1 / 0")
    with once(message()) as connection:
        assert connection is not None


def test_failures_before_the_work_leave_no_connection_open(database):
    opened = []

    def connect() -> Any:
        opened.append(database.connect())
        return opened[-1]

    connection = database.connect()
    connection.cursor().execute("create table pyromq_done (id integer)")
    connection.commit()
    connection.close()
    once = Once(connect, "billing")
    for _ in range(2):
        with pytest.raises(Exception, match=r"done_at|consumer_group"), once(message()):
            pass
    assert len(opened) == 2
    for each in opened:
        with pytest.raises(Exception, match="closed"):
            each.cursor()


def test_a_table_without_its_primary_key_is_refused(database, once_of):
    connection = database.connect()
    connection.cursor().execute(
        "create table pyromq_done (consumer_group varchar(255), message_key varchar(255), done_at bigint)"
    )
    connection.commit()
    connection.close()
    with pytest.raises(Exception, match=r"(?i)on conflict"), once_of()(message()):
        pass


def test_an_account_that_may_not_create_tables_uses_the_table_of_another(database, once_of):
    if not isinstance(database, Postgres):
        pytest.skip("SQLite has no accounts")
    with once_of()(message(1)):
        pass
    connection = database.connect()
    connection.execute("drop role if exists clerk")
    connection.execute("create role clerk login")
    connection.execute("grant select, insert, delete on pyromq_done to clerk")
    connection.commit()
    connection.close()
    with once_of(connect=lambda: database.connect("clerk"))(message(2)) as connection:
        assert connection is not None


def test_a_connection_of_several_threads_is_refused(tmp_path):
    shared = sqlite3.connect(tmp_path / "a.db", check_same_thread=False)
    once = Once(lambda: shared, "billing")
    errors = []

    def deliver() -> None:
        try:
            with once(message(2)):
                pass
        except UsageError as error:
            errors.append(str(error))

    with once(message(1)):
        thread = threading.Thread(target=deliver)
        thread.start()
        thread.join(30)
    assert "returned the connection of another thread" in errors[0]
    with once(message(2)) as connection:
        assert connection is shared
    once.close()


def test_a_class_of_the_application_may_extend_a_connection(tmp_path):
    class Connection(sqlite3.Connection):
        pass

    once = Once(lambda: sqlite3.connect(tmp_path / "a.db", factory=Connection), "billing")
    with once(message()) as connection:
        assert type(connection) is Connection
    once.close()


def test_a_database_that_is_locked_or_cannot_be_written_keeps_the_work(tmp_path):
    path = tmp_path / "a.db"
    once = Once(lambda: sqlite3.connect(path, timeout=0), "billing")
    with sqlite3.connect(path) as other:
        other.execute("begin exclusive")
        with pytest.raises(sqlite3.OperationalError, match="locked"), once(message()):
            pass
    other.close()
    with once(message()) as connection:
        assert connection is not None
    once.close()
    once = Once(lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True), "billing")
    with pytest.raises(sqlite3.OperationalError, match="readonly"), once(message(2)):
        pass
    once.close()


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

    @pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError])
    def test_failed_work_is_done_again(self, redis_server, failure):
        once = Once(redis_server(), f"failing-{failure.__name__}")
        with pytest.raises(failure), once(message()):
            raise failure
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

    def test_claim_and_mark_end_by_themselves(self, redis_server):
        client, name = redis_server(), f"pyromq:done:ending:{message().message_id}"
        with Once(client, "ending", claim_seconds=60, window_seconds=600)(message()):
            assert 0 < client.ttl(name) <= 60
        assert 60 < client.ttl(name) <= 600

    def test_a_message_whose_work_is_claimed_is_retried_for_hours(self, redis_server):
        first, second = Once(redis_server(), "long", claim_seconds=3600), Once(redis_server(), "long")
        with first(message()), pytest.raises(RetryLater) as raised, second(message()):
            pass
        assert raised.value.delay_level == 0  # the broker's delays grow; 16 attempts at one level of 10 s end too early

    def test_the_error_of_the_work_is_raised_if_redis_is_gone_too(self, redis_server):
        class Gone(type(redis_server())):  # type: ignore[misc]
            def eval(self, *arguments: object) -> object:
                raise ConnectionError("Connection refused")

        pool = redis_server().connection_pool
        with pytest.raises(ZeroDivisionError), Once(Gone(connection_pool=pool), "gone")(message()):
            1 / 0  # noqa: B018

    def test_a_client_for_asyncio_is_refused(self, redis_server):
        from redis.asyncio import Redis

        socket = redis_server().connection_pool.connection_kwargs["path"]
        once = Once(Redis(unix_socket_path=socket), "async")
        with pytest.raises(UsageError, match="client of Redis is for asyncio"), once(message()):
            pass

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


def test_mysql_is_refused_by_name():
    mysql = type("Connection", (), {"__module__": "pymysql.connections", "close": lambda self: None})
    with pytest.raises(UsageError, match="connections of pymysql are not supported"), Once(mysql, "billing")(message()):
        pass


def test_a_coroutine_function_is_refused():
    async def connect() -> None:
        pass

    with pytest.raises(UsageError, match="the function is for asyncio"), Once(connect, "billing")(message()):
        pass
