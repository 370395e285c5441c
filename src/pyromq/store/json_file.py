"""Small files on disk that survive a crash at any moment. This module does not know the meaning of their content.

A JSON object gets a last field `checksum`: CRC-32 of the object without that field, as 8 hexadecimal digits. RocketMQ
ignores the field and writes no such field: an object without a checksum is accepted unchecked.
"""

from __future__ import annotations

import errno
import re
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from pyromq.errors import ProtocolError, StoreCorrupt, StoreError, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.store.disk import (
    LOCAL_DISK,
    Disk,
    is_full,
    make_durable_folder,
    path_beside,
    read_file,
    remove_file,
    write_file,
)

logger = logger_of(__name__)

T = TypeVar("T")

_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{8})"}\Z')
_CHECKSUM_BYTES = len(b',"checksum":"12345678"}')


class JsonFile:
    """One file whose content is replaced as a whole. The previous content is kept in a `.bak` file.

    Source: RocketMQ 4.9.8, ConfigManager, MixAll.
    """

    def __init__(self, path: Path, disk: Disk = LOCAL_DISK) -> None:
        self.path = path
        self.disk = disk
        self._has_folder = False  # a folder lost later is not made again: its disk may be unmounted
        self._saving = threading.Lock()
        self._order = 0

    def load(self) -> bytes | None:
        """Return the content; the previous content if the file is missing or empty; None without both.

        The checksum is removed unchecked. Raises `StoreError` if an existing file cannot be read.
        """
        content = self._content(self.path) or self._content(path_beside(self.path, ".bak")) or b""
        self._has_folder = self._has_folder or bool(content)
        return _split(content)[0] or None

    def read(self, decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded content; the previous content if the file is missing, empty or damaged; None without both.

        A damaged file is renamed to `.damaged`. Raises `StoreCorrupt` if the file is damaged and there is no readable
        previous content.
        """
        damaged: StoreCorrupt | None = None
        for path in (self.path, path_beside(self.path, ".bak")):
            try:
                decoded = self._decoded(path, decode)
            except StoreCorrupt as error:
                damaged = damaged or error
                continue
            if decoded is not None and damaged is not None:
                self.disk.replace(self.path, path_beside(self.path, ".damaged"))
                logger.warning("%s; the previous content is used, the damaged file is kept as .damaged", damaged)
            if decoded is not None:
                self._has_folder = True
                return decoded
        if damaged is not None:
            raise StoreCorrupt(
                f"{damaged}; restore it from a backup, or move it away to start without its content"
            ) from damaged
        return None

    def save(self, content: bytes, *, order: int = 0) -> None:
        """Replace the content durably. Raises `StoreNotWritable`. Thread-safe.

        Does nothing if content with a higher `order` was saved before.
        """
        with self._saving:
            if order >= self._order:
                self._replace(content)
                self._order = order

    def saving(self, content: Callable[[], bytes], *, failed: Callable[[], None], order: int = 0) -> Callable[[], None]:
        """Return a function that calls `content` and saves the result. Any thread may call the function.

        On an error the function calls `failed` and raises `StoreError`.
        """

        def save() -> None:
            try:
                self.save(content(), order=order)
            except StoreError:
                failed()
                raise

        return save

    def _replace(self, content: bytes) -> None:
        try:
            if not self._has_folder:
                make_durable_folder(self.disk, self.path.parent)
                self._has_folder = True
            temporary, content = path_beside(self.path, ".tmp"), _with_checksum(content)
            try:
                self._write_beside(temporary, content)
            except OSError as error:
                if not is_full(error):
                    raise
                # The previous content has about as many bytes as the new content.
                remove_file(self.disk, path_beside(self.path, ".bak"))
                write_file(self.disk, temporary, content)
            self.disk.replace(temporary, self.path)
            self.disk.sync_folder(self.path.parent)
        except OSError as error:
            raise StoreNotWritable(f"cannot write {self.path}: {error.strerror}") from error

    def _write_beside(self, temporary: Path, content: bytes) -> None:
        write_file(self.disk, temporary, content)
        if previous := self._content(self.path):
            write_file(self.disk, path_beside(self.path, ".bak"), previous)

    def _content(self, path: Path) -> bytes | None:
        try:
            return read_file(self.disk, path)
        except OSError as error:
            advice = "; give this user the right to read it" if error.errno in (errno.EACCES, errno.EPERM) else ""
            raise StoreError(f"cannot read {path}: {error.strerror}{advice}") from error

    def _decoded(self, path: Path, decode: Callable[[bytes], T]) -> T | None:
        content = self._content(path)
        try:
            return decode(verified(content)) if content else None
        except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreCorrupt(f"{path} is damaged: {error}") from error


def verified(content: bytes) -> bytes:
    """Return a file's content without the field `checksum`. Raises `ProtocolError` if the checksum is wrong."""
    plain, checksum = _split(content)
    if checksum is not None and checksum != zlib.crc32(plain):
        raise ProtocolError(
            f"its checksum is {checksum:08x}, the checksum of its content is {zlib.crc32(plain):08x};"
            " after an edit by hand, remove its last field, checksum"
        )
    return plain


def _split(content: bytes) -> tuple[bytes, int | None]:
    """Return a file's content without the field `checksum`, and the checksum; None if the file has no checksum."""
    found = _CHECKSUM.search(content, max(len(content) - _CHECKSUM_BYTES, 0))
    return (content, None) if found is None else (content[: found.start()] + b"}", int(found[1], 16))


def _with_checksum(content: bytes) -> bytes:
    has_fields = content.startswith(b"{") and content[1:].lstrip().startswith(b'"')  # compact or with line breaks
    if not (has_fields and content.endswith(b"}")):
        return content  # no checksum is added to a properties file or an object without fields
    return b'%b,"checksum":"%08x"}' % (content[:-1], zlib.crc32(content))
