"""The data folder of a broker, noted at every write: what SIGKILL at that moment leaves behind.

It watches the system calls that change files, and the functions that write into mapped ones; it knows no formats.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyromq.store.batch_appends import BatchAppends
from pyromq.store.index.index_file import IndexFile
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queue.consume_queue import ConsumeQueue

PAGE = 1024
ZEROS = bytes(PAGE)
SYSTEM_CALLS = ("pwrite", "ftruncate", "posix_fallocate", "fsync", "fdatasync", "unlink", "replace", "mkdir")
MAPPED_WRITES = (
    *((CommitLog, "append"), (CommitLog, "append_batch"), (ConsumeQueue, "append"), (IndexFile, "put")),
    (BatchAppends, "append"),
)
MAPPED_FOLDERS = ("commitlog/", "consumequeue/", "index/")
PATIENCE_SECONDS = 0.05  # of a thread, until the one that writes leaves it a turn

_pages: dict[bytes, bytes] = {ZEROS: ZEROS}  # equal pages of all images, once


@dataclass(frozen=True, slots=True)
class File:
    size: int
    pages: tuple[bytes, ...]

    def content(self) -> bytes:
        return b"".join(self.pages)[: self.size]


Image = dict[str, File]  # by path below the folder


def image_of(folder: Path) -> Image:
    """Return the files of a folder. Whoever writes must not do so meanwhile, but for compiled sends.

    These write a record and then its queue entry, unseen. So the log is read last: no entry is without its record.
    """
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    image = {}
    for path in sorted(paths, key=lambda path: path.parent.name == "commitlog"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # temporary ones come and go
            continue
        image[str(path.relative_to(folder))] = file_of(content)
    return image


def file_of(content: bytes) -> File:
    pages = (content[start : start + PAGE] for start in range(0, len(content), PAGE))
    return File(len(content), tuple(_pages.setdefault(page, page) for page in pages))


def restore(image: Image, folder: Path) -> None:
    """Make a folder that holds just that. Pages of zeros become holes."""
    for name, file in image.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as target:
            for number, page in enumerate(file.pages):
                if page is not ZEROS:
                    target.seek(number * PAGE)
                    target.write(page)
            target.truncate(file.size)


def torn(before: Image, after: Image, chance: random.Random) -> Image | None:
    """Return what is there when a write into mapped files is cut short at any byte; None where nothing changed.

    A write that goes over two files of the log ends the first one, named before the other, first.
    """
    # Tables that other threads made meanwhile are none of this write's.
    made = (name for name in after if name.startswith(MAPPED_FOLDERS) and name not in before)
    empty = {name: file_of(bytes(after[name].size)) for name in made}
    left = {**empty, **before}
    changed = sorted(name for name in after if name.startswith(MAPPED_FOLDERS) and left[name] != after[name])
    if not changed:
        return None
    name = chance.choice(changed)
    left |= {earlier: after[earlier] for earlier in changed[: changed.index(name)]}
    old, new = left[name].content(), after[name].content()
    differing = [place for place in range(0, len(new), 8) if old[place : place + 8] != new[place : place + 8]]
    cut = chance.choice(differing) + chance.randrange(8)
    return {**left, name: file_of(new[:cut] + old[cut:])}


class Disk:
    """Calls `on_write(before, after, mapped)` for the writes that `chosen` picks by name, while it is `armed`.

    `mapped`: it was a write into mapped files, which a kill may cut short.
    """

    def __init__(
        self, folder: Path, chosen: Callable[[str], bool], on_write: Callable[[Image, Image, bool], None]
    ) -> None:
        self.armed = False
        self.writes = 0
        self._folder = folder
        self._chosen = chosen
        self._on_write = on_write
        self._lock = threading.RLock()  # held by the loop's thread while it writes, by others while they look
        self._thread = threading.get_ident()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Everything opened inside is watched. Enter it before the broker."""
        with pytest.MonkeyPatch.context() as patches:
            for name in SYSTEM_CALLS:
                patches.setattr(os, name, self._around(getattr(os, name), mapped=False))
            for owner, name in MAPPED_WRITES:
                patches.setattr(owner, name, self._around(getattr(owner, name), mapped=True))
            # Compiled code would write entries of many records, unseen, and in another order than that of their bytes.
            patches.setattr(IndexFile, "enter", _enter_nothing, raising=False)
            try:
                yield
            finally:
                self.armed = False

    def _around(self, write: Callable[..., Any], *, mapped: bool) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            if not self.armed:
                return write(*arguments, **more)
            self.writes += 1
            if threading.get_ident() != self._thread:
                return self._elsewhere(write, arguments, more)
            with self._lock:
                if not self._chosen(write.__name__):
                    return write(*arguments, **more)
                before = image_of(self._folder)
                result = write(*arguments, **more)
                if self.armed:
                    self._on_write(before, image_of(self._folder), mapped)
                return result

        wrapped.__name__ = write.__name__
        return wrapped

    def _elsewhere(self, write: Callable[..., Any], arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """The same in another thread, which must not wait for long for one that may wait for it."""
        is_alone = self._lock.acquire(timeout=PATIENCE_SECONDS)  # files must not come and go while they are looked at
        try:
            result = write(*arguments, **more)
            if is_alone and self.armed and self._chosen(write.__name__):
                image = image_of(self._folder)
                self._on_write(image, image, False)
            return result
        finally:
            if is_alone:
                self._lock.release()


def _enter_nothing(_: IndexFile, __: memoryview, *, log_offset: int, **___: object) -> tuple[int, int]:
    """Leave all records to the plain form."""
    return log_offset, 0
