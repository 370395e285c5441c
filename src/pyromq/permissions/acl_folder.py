"""The files of accounts: `plain_acl.yml` in a folder, and all `.yml` and `.yaml` below `acl/` in it.

Read and written with the system's own calls, not through the store's disk: a new file with secrets in it is for its
owner alone. Source: RocketMQ 4.9.8, PlainPermissionManager.getAllAclFiles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyromq.errors import StoreNotWritable, UsageError
from pyromq.permissions.acl_file import AclFile, Raw, parse_acl_file, write_acl_file

Stamps = dict[Path, tuple[int, int, int]]  # what tells a changed file: when it changed, its size, its number

_OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True)
class Reading:
    """What the files said when their stamps were these."""

    stamps: Stamps
    files: tuple[AclFile, ...]


class AclFolder:
    """One folder of accounts' files; nothing of it need exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.default_file = folder / "plain_acl.yml"

    def stamps(self) -> Stamps:
        """Return which files there are, and as of when. Those below `acl/` come first, by name."""
        stamps = {}
        for path in self._paths():
            try:
                status = path.stat()
            except OSError:
                continue  # removed meanwhile
            stamps[path] = status.st_mtime_ns, status.st_size, status.st_ino
        return stamps

    def read(self) -> Reading:
        """Read all files. Raises `UsageError` naming the one that cannot be read or understood, and why."""
        stamps = self.stamps()
        return Reading(stamps, tuple(parse_acl_file(path, _content(path)) for path in stamps))

    def holds(self, path: Path) -> bool:
        """Whether this is one of the folder's files."""
        return path in set(self._paths())

    def write(self, path: Path, raw: Raw) -> None:
        """Replace a file, whole or not at all; who could read it still can. Raises `StoreNotWritable`."""
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mode = path.stat().st_mode & 0o777 if path.exists() else _OWNER_ONLY
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
            with os.fdopen(descriptor, "wb") as file:
                file.write(write_acl_file(raw))
                file.flush()
                os.fsync(descriptor)
            temporary.chmod(mode)
            temporary.replace(path)
        except OSError as error:
            raise StoreNotWritable(f"cannot write {path}: {error.strerror}") from error

    def _paths(self) -> Iterator[Path]:
        below = self.folder / "acl"
        for path in sorted(below.rglob("*.y*ml")):
            if path.suffix in (".yml", ".yaml") and not path.name.startswith("."):
                yield path
        if self.default_file.exists():
            yield self.default_file


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
