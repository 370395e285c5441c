"""The data folder of a server that is ended in this process as SIGKILL would end it."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path


async def keep_as_killed(folder: Path, end: Callable[[], Awaitable[None]]) -> None:
    """Call `end`, which may write; afterwards the folder is as it was before the call.

    As the kernel does after SIGKILL, this keeps everything that the server wrote, flushed or not.
    """
    left = folder.with_name(folder.name + ".killed")
    # Without temporary files, which a thread may be writing.
    shutil.copytree(folder, left, ignore=shutil.ignore_patterns("*.tmp"))
    await end()
    shutil.rmtree(folder)
    left.rename(folder)
