"""Files on their way out: unlinked in a thread, one after the other, since one of 1 GiB takes a disk a while.

Nobody finds them any more; whoever still has a view of one keeps its bytes until the view is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from pyromq.logs import logger_of
from pyromq.store.disk import Disk
from pyromq.store.log.segment import Segment
from pyromq.store.worker import Worker, worker

logger = logger_of(__name__)


class Removal:
    """Deletes in the order of `add`, and never a file whose predecessor is still there: a log must not get holes."""

    def __init__(self, disk: Disk) -> None:
        self.before: Callable[[], None] = lambda: None  # called by the thread before it deletes
        self._disk = disk
        self._files: deque[Segment] = deque()  # filled by the owner, emptied by the thread
        self._thread: Worker | None = None
        self._turn: Future[None] | None = None
        self._complaint = ""

    def add(self, files: Iterable[Segment]) -> None:
        self._files.extend(files)

    def start(self) -> None:
        """Let the thread delete what there is. Called again and again: what failed is tried again."""
        if self._files and (self._turn is None or self._turn.done()):
            self._thread = self._thread or worker(self._disk, "store-removal")
            self._turn = self._thread.submit(self._remove)

    def close(self) -> None:
        """Wait until the thread is done."""
        self.start()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _remove(self) -> None:
        while self._files:
            file = self._files[0]
            try:
                self.before()
                file.delete()  # for good: a power cut could bring back a file, and not the one behind it
            except OSError as error:
                complaint = f"{file.path} is expired and cannot be deleted: {error.strerror}; see to its permissions"
                if complaint != self._complaint:
                    logger.warning(complaint)
                    self._complaint = complaint
                return
            self._files.popleft()
