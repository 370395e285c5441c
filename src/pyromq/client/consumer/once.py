"""Runs the work for each message once, with marks of finished work in a database of the application."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib import import_module
from inspect import isawaitable
from typing import Any
from uuid import uuid4

from pyromq.client.consumer.push.listener import RetryLater
from pyromq.clock import Clock, SystemClock
from pyromq.errors import UsageError
from pyromq.message import StoredMessage

WEEK_SECONDS = 7 * 24 * 3600
MAX_KEY = 255  # limit of a key's characters: size of the column `message_key`
CLEANING_SECONDS = 3600.0  # interval of deletions of old marks
CLAIM_SECONDS = 60.0  # default time that work may take with Redis before another process may repeat it

_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
_MYSQL = {"pymysql", "MySQLdb", "mysql", "mariadb"}  # drivers of a database without `on conflict`
_TABLE = """\
create table if not exists pyromq_done (
    consumer_group varchar(255) not null, message_key varchar(255) not null, done_at bigint not null,
    primary key (consumer_group, message_key))"""
_INDEX = "create index if not exists pyromq_done_at on pyromq_done (done_at)"
_INSERT = "insert into pyromq_done (consumer_group, message_key, done_at) values ({0}, {0}, {0})"
_INSERT += " on conflict (consumer_group, message_key) do nothing"  # fails if the table has no such primary key
_LOOK = "select done_at from pyromq_done where consumer_group = '' and message_key = ''"
_PROBE = "delete from pyromq_done where consumer_group = '' and message_key = '' and done_at = 0"  # no group is empty
_CLEAN = "delete from pyromq_done where consumer_group = {0} and done_at < {0}"

_IDLE, _IN_TRANSACTION, _FAILED = 0, 2, 3  # states of a transaction, with libpq's numbers

_DONE = b"done"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Once:
    """Runs the work for a message once in a consumer group, although messages are delivered at least once.

    `store` keeps a mark for each finished message. A store is one of:

    - a function that returns a new DB-API connection to SQLite or PostgreSQL. Work on this connection and its mark are
      one transaction, so the work happens exactly once. Each thread has a connection and one open block; the
      application must not commit.
    - a client of Redis, `redis.Redis`. The mark is written after the work. The work is repeated if its process dies
      before the mark is written, or if the work takes longer than `claim_seconds`.

    `key(message)` names the work, in at most 255 characters. The default is the message id, which all attempts of one
    `send` and all redeliveries share. A mark is kept for `window_seconds`. Raises `UsageError` for invalid arguments.
    """

    def __init__(
        self,
        store: Any,
        group: str,
        *,
        key: Callable[[StoredMessage], str] | None = None,
        window_seconds: float = WEEK_SECONDS,
        claim_seconds: float = CLAIM_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if not group:
            raise UsageError("group is empty; name the consumer group whose work is marked")
        for name, seconds in (("window_seconds", window_seconds), ("claim_seconds", claim_seconds)):
            if not 0.001 <= seconds < 1e10:
                raise UsageError(f"{name}={seconds} is not between 0.001 and 10,000,000,000")
        self._key = key or (lambda message: message.message_id)
        self._marks: _DatabaseMarks | _RedisMarks
        if callable(store):
            self._marks = _DatabaseMarks(store, group, window_seconds, clock or SystemClock())
        elif hasattr(store, "set") and hasattr(store, "eval"):
            self._marks = _RedisMarks(store, group, window_seconds, claim_seconds)
        else:
            raise UsageError(
                f"store={type(store).__name__} is neither a function that returns a database connection nor a client "
                "of Redis; pass `lambda: sqlite3.connect(...)`, or `redis.Redis(...)`"
            )

    def __call__(self, message: StoredMessage) -> AbstractContextManager[Any]:
        """Return a context for the work. Its value is the connection or Redis client, or None for finished work.

        An exception in the context removes the mark, so the work is repeated after the redelivery. Raises `UsageError`
        for an invalid key, for a second block in a thread, and for a block that ended its transaction. Raises
        `RetryLater` while another process works on the message, and the errors of the store.
        """
        key = self._key(message)
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or "\0" in key:
            raise UsageError(
                f"key(message) returned {key!r:.300} for message {message.message_id}; "
                f"it must return a text of 1 to {MAX_KEY} characters without NUL"
            )
        return self._marks.work(key)

    def close(self) -> None:
        """Close the database connections of all threads. A Redis client is not closed."""
        if isinstance(self._marks, _DatabaseMarks):
            self._marks.close()


class _DatabaseMarks:
    """Marks in the table `pyromq_done` of an SQL database, written in the transaction of the work."""

    def __init__(self, connect: Callable[[], Any], group: str, window_seconds: float, clock: Clock) -> None:
        self._connect = connect
        self._group = group
        self._window_ms = int(window_seconds * 1000)
        self._clock = clock
        self._threads = threading.local()
        self._open: list[Any] = []  # connections of all threads
        self._clean_at = clock.monotonic()

    @contextmanager
    def work(self, key: str) -> Iterator[Any]:
        if getattr(self._threads, "is_busy", False):
            raise UsageError(
                "a block is open in this thread; end it before the block of the next message, and do not await in it"
            )
        connection, placeholder = self._connection()
        threads = self._threads  # `close` replaces them
        threads.is_busy = True
        try:
            now_ms = self._clock.now_ms()
            is_first = self._mark(connection, placeholder, key, now_ms)
            yield connection if is_first else None
            _check_open(connection)
            connection.commit()
        except BaseException:
            self._roll_back(connection)
            raise
        else:
            self._clean(connection, placeholder, now_ms)
        finally:
            threads.is_busy = False

    def close(self) -> None:
        self._threads = threading.local()
        while self._open:
            with contextlib.suppress(Exception):  # SQLite lets only the thread that opened a connection close it
                self._open.pop().close()

    def _connection(self) -> tuple[Any, str]:
        """Return the connection of this thread, and the placeholder of its values in statements."""
        found: tuple[Any, str] | None = getattr(self._threads, "found", None)
        if found is None:
            connection = self._connect()
            if any(connection is each for each in self._open):
                raise UsageError("the function returned the connection of another thread; return a new one each time")
            self._open.append(connection)
            try:
                found = connection, _placeholder(connection)
                self._prepare(connection)
            except BaseException:
                self._drop(connection)
                raise
            self._threads.found = found
        return found

    def _prepare(self, connection: Any) -> None:
        """Create the table if it is missing, and refuse a connection that commits each statement."""
        try:
            self._run(connection, _LOOK)  # an account that may not create tables can use the table of another
        except Exception:  # noqa: BLE001  each driver has its own error for a missing table
            connection.rollback()
            self._make_table(connection)
        self._run(connection, _PROBE)
        if _state(connection) == _IDLE:
            raise UsageError(
                "the database connection commits each statement by itself; switch autocommit off: work and mark must "
                "be one transaction"
            )
        connection.rollback()

    def _make_table(self, connection: Any) -> None:
        try:
            self._run(connection, _TABLE)
        except Exception:  # noqa: BLE001  in PostgreSQL, one of two connections that create a table fails, with the driver's error
            connection.rollback()
            self._run(connection, _TABLE)
        self._run(connection, _INDEX)
        connection.commit()

    def _mark(self, connection: Any, placeholder: str, key: str, now_ms: int) -> bool:
        """Insert the mark. Return False if the table has it. A connection that fails is closed."""
        try:
            return self._run(connection, _INSERT.format(placeholder), self._group, key, now_ms) == 1
        except BaseException:
            self._drop(connection)
            raise

    def _clean(self, connection: Any, placeholder: str, now_ms: int) -> None:
        if self._clock.monotonic() < self._clean_at:
            return
        self._clean_at = self._clock.monotonic() + CLEANING_SECONDS
        try:
            self._run(connection, _CLEAN.format(placeholder), self._group, now_ms - self._window_ms)
            connection.commit()
        except Exception:  # noqa: BLE001  the work is committed: old marks are deleted an hour later
            self._roll_back(connection)

    def _roll_back(self, connection: Any) -> None:
        """Undo the work and its mark. A connection that fails is closed."""
        try:
            connection.rollback()
        except Exception:  # noqa: BLE001  the first error is raised
            self._drop(connection)

    def _drop(self, connection: Any) -> None:
        """Close a connection of this thread. The next work opens another connection."""
        self._threads.found = None
        with contextlib.suppress(Exception):
            self._open.remove(connection)
            connection.close()

    @staticmethod
    def _run(connection: Any, statement: str, *values: object) -> int:
        """Run a statement; return the number of changed rows."""
        with closing(connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)


def _placeholder(connection: Any) -> str:
    """Return the placeholder of values in the statements of the connection's driver."""
    if isawaitable(connection):
        _close(connection)
        raise UsageError("the function is for asyncio; return a connection that waits for its database by itself")
    drivers = [each.__module__.partition(".")[0] for each in type(connection).__mro__]
    for driver in drivers:  # a class of the application may extend the driver's
        style = None if driver in _MYSQL else getattr(import_module(driver), "paramstyle", None)
        if style in _PLACEHOLDERS:
            return _PLACEHOLDERS[style]
    raise UsageError(
        f"connections of {drivers[0]} are not supported; use those of sqlite3 or psycopg, or pass a client of "
        "Redis itself instead of a function"
    )


def _close(awaitable: Any) -> None:
    """Close a coroutine that is not awaited, so that Python does not warn of it."""
    with contextlib.suppress(AttributeError):
        awaitable.close()


def _state(connection: Any) -> int:
    """Return the state of the connection's transaction. The answer is `_IN_TRANSACTION` for an unknown driver."""
    if hasattr(connection, "in_transaction"):  # sqlite3
        return _IN_TRANSACTION if connection.in_transaction else _IDLE
    return int(getattr(getattr(connection, "info", None), "transaction_status", _IN_TRANSACTION))


def _check_open(connection: Any) -> None:
    """Raise `UsageError` if a commit would not write the mark with all of the work."""
    if _state(connection) == _IDLE:
        raise UsageError(
            "the block has ended the transaction; use neither commit, rollback nor `with connection` in the block"
        )
    if _state(connection) == _FAILED:
        raise UsageError(
            "a statement in the block has failed, so the database refuses to commit; let the block raise the error, or "
            "put the statement into a savepoint"
        )


class _RedisMarks:
    """Marks in Redis: a claim while the work is in progress, then `done` until the window ends."""

    def __init__(self, client: Any, group: str, window_seconds: float, claim_seconds: float) -> None:
        self._client = client
        self._group = group
        self._window_ms = int(window_seconds * 1000)
        self._claim_ms = int(claim_seconds * 1000)

    @contextmanager
    def work(self, key: str) -> Iterator[Any]:
        name, claim = f"pyromq:done:{self._group}:{key}", uuid4().hex
        claimed = self._client.set(name, claim, nx=True, px=self._claim_ms)
        if isawaitable(claimed):
            _close(claimed)
            raise UsageError("this client of Redis is for asyncio; pass a `redis.Redis`")
        if not claimed:
            if self._client.get(name) not in (_DONE, _DONE.decode()):  # a client may decode its replies
                raise RetryLater(f"the work for {key} is in progress in another process")
            yield None
            return
        try:
            yield self._client
        except BaseException:
            with contextlib.suppress(Exception):  # the work's error is raised; the claim ends after `claim_seconds`
                self._client.eval(_RELEASE, 1, name, claim)
            raise
        self._client.set(name, _DONE, px=self._window_ms)
