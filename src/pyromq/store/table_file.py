"""A table that a thread writes, so that nobody waits for the disk who need not: changes made meanwhile go together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from pyromq.errors import StoreError
from pyromq.store.disk import worker
from pyromq.store.json_file import JsonFile

T = TypeVar("T")


class TableFile(Generic[T]):
    """The newest table handed over is what is written; `encode` is called in the thread, so tables must not change."""

    def __init__(self, file: JsonFile, encode: Callable[[T], bytes]) -> None:
        self._file = file
        self._encode = encode
        self._thread = worker(file.disk, f"table-{file.path.stem}")
        # What both sides change: the table to write next, and who waits for that.
        self._lock = threading.Lock()
        self._next: tuple[T, int] | None = None
        self._waiting: list[Future[None]] = []
        self._is_writing = False

    def save(self, table: T, *, order: int) -> Future[None]:
        """Have this table written, or a later one; resolves, in the thread, when it is on disk.

        The future's exception is `StoreNotWritable`. `order` grows with each change.
        """
        saved: Future[None] = Future()
        with self._lock:
            self._next = table, order
            self._waiting.append(saved)
            begins, self._is_writing = not self._is_writing, True
        if begins:
            self._thread.submit(self._write)
        return saved

    def close(self) -> None:
        """Return when all is written, or refused."""
        self._thread.shutdown()

    def _write(self) -> None:
        while (taken := self._take()) is not None:
            (table, order), waiting = taken
            try:
                self._file.save(self._encode(table), order=order)
            except StoreError as error:
                for saved in waiting:
                    saved.set_exception(error)
            else:
                for saved in waiting:
                    saved.set_result(None)

    def _take(self) -> tuple[tuple[T, int], list[Future[None]]] | None:
        with self._lock:
            if self._next is None:
                self._is_writing = False
                return None
            taken = self._next, self._waiting
            self._next, self._waiting = None, []
            return taken
