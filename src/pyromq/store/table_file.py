"""A table saved to disk by a thread. Changes made during a write are saved together by the next one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from pyromq.errors import StoreError
from pyromq.store.json_file import JsonFile
from pyromq.store.worker import worker

_PART = 200  # members encoded at once: some 300 us, which may delay the event loop
_BEFORE, _BEHIND = b'{\n "": {\n', b"\n }\n}"  # text of msgspec around them

T = TypeVar("T")
R = TypeVar("R")
RunSoon = Callable[[Callable[[], None]], object]  # runs a function at the end of the event loop's iteration


def at_once(work: Callable[[], None]) -> None:
    work()


class TableFile(Generic[T]):
    """Writes the newest table. A thread calls `encode`, so a table must not change once handed over.

    Changes within one iteration of the event loop are handed over once, at its end, by `run_soon`.
    """

    def __init__(
        self,
        file: JsonFile,
        encode: Callable[[T], bytes],
        run_soon: RunSoon = at_once,
    ) -> None:
        self._run_soon = run_soon
        self._file = file
        self._encode = encode
        self._thread = worker(file.disk, f"table-{file.path.stem}")
        # Of the current iteration.
        self._changed: tuple[Callable[[], T], int] | None = None
        self._asked: list[Future[None]] = []
        self._before: list[Callable[[], None]] = []
        # Shared with the thread: the next table to write, and the futures that wait for it.
        self._lock = threading.Lock()
        self._next: tuple[T, int] | None = None
        self._waiting: list[Future[None]] = []
        self._first: deque[Callable[[], None]] = deque()
        self._is_writing = False

    def save(self, table: Callable[[], T], *, order: int, after: Callable[[], None] | None = None) -> Future[None]:
        """Save the table that `table` returns at the end of the iteration.

        The thread resolves the future once the table is on disk, or with `StoreNotWritable`. `order` must grow with
        each change. The thread calls `after` before the write; if that raises `StoreError`, no table is written until
        a later call of it succeeds.
        """
        saved: Future[None] = Future()
        self._asked.append(saved)
        if after is not None:
            self._before.append(after)
        is_first, self._changed = self._changed is None, (table, order)
        if is_first:
            self._run_soon(self._hand_over)
        return saved

    def _hand_over(self) -> None:
        if self._changed is None:
            return
        (table, order), self._changed = self._changed, None
        with self._lock:
            self._next = table(), order
            self._first.extend(self._before)
            self._waiting += self._asked
            begins, self._is_writing = not self._is_writing, True
        self._before, self._asked = [], []
        if begins:
            self._thread.submit(self._write)

    def close(self) -> None:
        """Write the remaining changes and join the thread."""
        self._hand_over()
        self._thread.shutdown()

    def _write(self) -> None:
        while (taken := self._take()) is not None:
            (table, order), waiting = taken
            try:
                while self._first:
                    self._first[0]()
                    self._first.popleft()
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


def formatted(head: msgspec.Struct, members: Mapping[str, object], *, indent: int = 1) -> bytes:
    """Return a table as indented JSON: `head`, with `members` in its last field, which must be an empty object.

    For threads: releases the interpreter's lock between parts.
    """
    begin = msgspec.json.format(msgspec.json.encode(head), indent=indent)
    if not members:
        return begin
    parts = []
    names = iter(members)
    while part := {name: members[name] for name in islice(names, _PART)}:
        text = msgspec.json.format(msgspec.json.encode({"": part}), indent=indent)
        parts.append(text[len(_BEFORE) : -len(_BEHIND)])
        give_way()
    return begin[: -len(b"}\n}")] + b"\n" + b",\n".join(parts) + b"\n }\n}"


def give_way() -> None:
    """Release the interpreter's lock to a waiting thread, usually that of the event loop."""
    time.sleep(0)


def when_saved(saved: Future[None], reply: R | Future[R]) -> Future[R]:
    """Return a future of the reply that resolves once a table is saved, or with the error of the save."""
    answered: Future[R] = Future()
    if isinstance(reply, Future):
        reply.add_done_callback(lambda ready: complete_when_saved(saved, ready.result(), answered))
    else:
        complete_when_saved(saved, reply, answered)
    return answered


def complete_when_saved(saved: Future[None], reply: R, answered: Future[R]) -> None:
    """Resolve `answered` to the reply once a table is saved, or with the error of the save."""

    def done(saved: Future[None]) -> None:
        if (error := saved.exception()) is not None:
            answered.set_exception(error)
        else:
            answered.set_result(reply)

    saved.add_done_callback(done)
