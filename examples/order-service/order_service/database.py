"""The service's own tables. Every connection is short: listeners run in several threads."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_TABLES = """
create table if not exists orders (id text primary key, transaction_id text not null);
create table if not exists payments (order_id text primary key, cents integer not null);
create table if not exists reminders (order_id text primary key);
"""


class Database:
    def __init__(self, path: Path) -> None:
        self._path = path
        with self._changes() as connection:
            connection.executescript(_TABLES)

    def add_order(self, order_id: str, transaction_id: str) -> None:
        with self._changes() as connection:
            connection.execute("insert into orders values (?, ?)", (order_id, transaction_id))

    def has_transaction(self, transaction_id: str) -> bool:
        return self._found("select 1 from orders where transaction_id = ?", transaction_id)

    def add_payment(self, order_id: str, cents: int) -> None:
        """Note a payment; a second one of the same order changes nothing."""
        with self._changes() as connection:
            connection.execute("insert or ignore into payments values (?, ?)", (order_id, cents))

    def is_paid(self, order_id: str) -> bool:
        return self._found("select 1 from payments where order_id = ?", order_id)

    def add_reminder(self, order_id: str) -> None:
        with self._changes() as connection:
            connection.execute("insert or ignore into reminders values (?)", (order_id,))

    def is_reminded(self, order_id: str) -> bool:
        return self._found("select 1 from reminders where order_id = ?", order_id)

    def _found(self, question: str, value: str) -> bool:
        with self._changes() as connection:
            return connection.execute(question, (value,)).fetchone() is not None

    @contextmanager
    def _changes(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are all made at the end of the block, or none after an exception."""
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            yield connection
