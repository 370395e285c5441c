"""Saves a table (such as consumer offsets) to its file in a thread.

Changes made during a write are saved together by the next write.
"""

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
from pyromq.slow_work import completed
from pyromq.store.json_file import JsonFile
from pyromq.store.worker import worker

_PART = 200  # members encoded per part: about 300 µs, a possible delay of the event loop
_BEFORE, _BEHIND = b'{\n "": {\n', b"\n }\n}"  # text that msgspec writes before and after the members of a part

T = TypeVar("T")
R = TypeVar("R")
RunSoon = Callable[[Callable[[], None]], object]  # runs a function at the end of the event loop's iteration


def at_once(work: Callable[[], None]) -> None:
    work()


class TableFile(Generic[T]):
    """Writes the newest state of a table to a file, in a thread. The thread calls `encode`.

    So a table must not change once `save` has handed it to the thread. Changes within one iteration of the event loop
    are handed to the thread together, at the end of the iteration; `run_soon` schedules that.
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
        # Calls of `save` in the current iteration of the event loop.
        self._changed: tuple[Callable[[], T], int] | None = None
        self._asked: list[Future[None]] = []
        self._saves = 0
        self._before: list[Callable[[], None]] = []
        # Shared with the thread: the next table to write, and the futures that wait for it.
        self._lock = threading.Lock()
        self._next: tuple[T, int] | None = None
        self._waiting: list[Future[None]] = []
        self._first: deque[Callable[[], None]] = deque()
        self._is_writing = False

    def save(
        self, table: Callable[[], T], *, order: int | None = None, after: Callable[[], None] | None = None
    ) -> Future[None]:
        """Save the table that the function `table` returns.

        The function is called at the end of the event loop's iteration. The thread resolves the returned future once
        the table is on disk, or sets `StoreNotWritable` as its error. `order` must grow with each change. It may be
        None if only this method writes the file. The thread calls `after` before the write. If `after` raises
        `StoreError`, no table is written until a later call of `after` succeeds.
        """
        saved: Future[None] = Future()
        self._asked.append(saved)
        self._saves += 1
        if after is not None:
            self._before.append(after)
        is_first, self._changed = self._changed is None, (table, self._saves if order is None else order)
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
        """Write the unsaved changes and join the thread. Blocks."""
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
    """Return a table as indented JSON: the fields of `head`, with `members` as content of the last field.

    The last field of `head` must be an empty object. For threads: other threads can run between the parts of the work.
    """
    begin = msgspec.json.format(msgspec.json.encode(head), indent=indent)
    if not members:
        return begin
    parts = []
    names = iter(members)
    while part := {name: members[name] for name in islice(names, _PART)}:
        text = msgspec.json.format(msgspec.json.encode({"": part}), indent=indent)
        parts.append(text[len(_BEFORE) : -len(_BEHIND)])
        release_gil()
    return begin[: -len(b"}\n}")] + b"\n" + b",\n".join(parts) + b"\n }\n}"


def release_gil() -> None:
    """Release Python's interpreter lock (GIL), so that a waiting thread, usually the event loop, can run."""
    time.sleep(0)


def has_failed(saved: Future[None]) -> bool:
    """Return whether a save is over and has failed."""
    return saved.done() and saved.exception() is not None


async def saved_or_undone(saved: Future[None], undo: Callable[[], None]) -> None:
    """Wait until a changed table is saved. If the save fails, call `undo` and raise the error.

    A refused change must not stay visible until a restart.
    """
    try:
        await completed(saved)
    except StoreError:
        undo()
        raise


def when_saved(saved: Future[None], reply: R | Future[R]) -> Future[R]:
    """Return a future that resolves to `reply` once the table is saved; an error of the save is the future's error.

    If `reply` is a future, its result is used once that future has resolved as well.
    """
    answered: Future[R] = Future()
    if isinstance(reply, Future):
        reply.add_done_callback(lambda ready: complete_when_saved(saved, ready.result(), answered))
    else:
        complete_when_saved(saved, reply, answered)
    return answered


def complete_when_saved(saved: Future[None], reply: R, answered: Future[R]) -> None:
    """Resolve `answered` to `reply` once the table is saved; if the save fails, set its error on `answered`."""

    def done(saved: Future[None]) -> None:
        if (error := saved.exception()) is not None:
            answered.set_exception(error)
        else:
            answered.set_result(reply)

    saved.add_done_callback(done)
