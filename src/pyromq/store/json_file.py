"""Small tables on disk that survive a crash at any moment; what the content means is the caller's."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from pyromq.errors import ProtocolError, StoreCorrupt, StoreError, StoreNotWritable

logger = logging.getLogger(__name__)

T = TypeVar("T")


class JsonFile:
    """One file with its previous content beside it as `.bak`. Source: RocketMQ 4.9.8, ConfigManager, MixAll."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> bytes | None:
        """Return the content, the previous one where the file is missing or empty; None if there is neither.

        Raises `StoreError` naming the file when it is there and cannot be read.
        """
        return _content(self.path) or _content(self._beside(".bak")) or None

    def read(self, decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded content; the previous one where the file is missing, empty or damaged; None without any.

        A damaged file is put aside as `.damaged`. Raises `StoreCorrupt` when the previous content is no better.
        """
        damaged: StoreCorrupt | None = None
        for path in (self.path, self._beside(".bak")):
            try:
                decoded = _decoded(path, decode)
            except StoreCorrupt as error:
                damaged = damaged or error
                continue
            if decoded is not None and damaged is not None:
                self.path.replace(self._beside(".damaged"))
                logger.warning("%s; the previous content is used, the damaged file is kept as .damaged", damaged)
            if decoded is not None:
                return decoded
        if damaged is not None:
            raise damaged
        return None

    def save(self, content: bytes) -> None:
        """Replace the content; it is on disk when this returns. Raises `StoreNotWritable` naming the file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._beside(".tmp")
            _write(temporary, content)
            if previous := _content(self.path):
                _write(self._beside(".bak"), previous)
            temporary.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise StoreNotWritable(f"cannot write {self.path}: {error.strerror}") from error

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _decoded(path: Path, decode: Callable[[bytes], T]) -> T | None:
    content = _content(path)
    try:
        return decode(content) if content else None
    except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"{path} is damaged: {error}; restore it from a backup, or move it away to go on without what it held"
        ) from error


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make names created, renamed or removed in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
