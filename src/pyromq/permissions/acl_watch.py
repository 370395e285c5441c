"""Reads the files of accounts, and puts what changes there in force within a second.

A thread looks at them four times a second. What has just changed is read when it is the same at the next look: an
editor may be at it. Files that cannot be understood change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.permissions.acl_folder import AclFolder, Stamps
from pyromq.permissions.permissions import Permissions
from pyromq.store.worker import Worker

logger = logger_of(__name__)

LOOK_SECONDS = 0.25


class AclWatch:
    """Looks at a folder's files for one broker. All but `load` is done by the thread."""

    def __init__(self, folder: AclFolder, permissions: Permissions, thread: Worker) -> None:
        self._folder = folder
        self._permissions = permissions
        self._thread = thread
        self._looking: Future[None] | None = None
        self._read: Stamps = {}  # of the files as they were last read
        self._seen: Stamps = {}  # as of the last look

    def load(self) -> None:
        """Read the files before anything else is done. Raises `UsageError` naming what is wrong."""
        self._take()
        if not self._permissions.in_force.accounts and not self._permissions.in_force.white_list:
            logger.warning(
                "permissions are on and there is no account: everybody is refused until %s has one",
                self._folder.default_file,
            )

    def look(self) -> None:
        """Have the thread look, if it has done so before."""
        if self._looking is not None:
            if not self._looking.done():
                return
            self._looking.result()  # raises what is a fault of ours
        self._looking = self._thread.submit(self._look)

    def change(self, edit: Callable[[], None]) -> Future[None]:
        """Have the thread edit files; resolves when that is on disk and in force. Its errors are the future's."""

        def edit_and_take() -> None:
            edit()
            self._take()

        return self._thread.submit(edit_and_take)

    def close(self) -> None:
        """Return when the thread has ended."""
        self._thread.shutdown()

    def _look(self) -> None:
        try:
            stamps = self._folder.stamps()
            rests = stamps == self._seen
            self._seen = stamps
            if stamps == self._read or not rests:
                return
            self._read = stamps
            self._take()
            logger.info("permissions: %d accounts are in force", len(self._permissions.in_force.accounts))
        except (MQError, OSError) as error:
            self._permissions.complain(str(error))

    def _take(self) -> None:
        reading = self._folder.read()
        self._read = self._seen = reading.stamps
        self._permissions.take(reading.files)
