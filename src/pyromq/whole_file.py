"""Small files outside of the store: replaced as a whole and durably, and read again after other programs changed them.

This module does not know the content of the files.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyromq.platforms import platform

OWNER_ONLY = 0o600

FileVersion = tuple[int, int, int]  # time of change, size and inode


def version_of(path: Path) -> FileVersion | None:
    """Return a value that changes when the file changes; None if the file cannot be found."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def replace_file(path: Path, content: bytes, *, mode: int = OWNER_ONLY) -> FileVersion | None:
    """Replace the content of a file durably: a crash leaves the previous content or this content.

    Creates missing folders. Returns the version of the new file. Raises `OSError`.
    """
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.tmp")
    draft.unlink(missing_ok=True)
    with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY)) as file:
        file.write(content)
        file.flush()
        platform.sync(file.fileno())
    draft.chmod(mode)
    version = version_of(draft)  # renaming does not change the version
    draft.replace(path)
    platform.sync_folder(path.parent)
    return version


def remove_file(path: Path) -> None:
    """Delete a file durably. A missing file is not an error. Raises `OSError`."""
    path.unlink(missing_ok=True)
    platform.sync_folder(path.parent)


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably. Only the owner has access to the folder. Raises `OSError`."""
    made = [each for each in (folder, *folder.parents) if not each.is_dir()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for each in made:
        platform.sync_folder(each.parent)
