"""Deletes expired messages: runs retention in slices, and answers administrators' requests to run retention now.

Messages that wait for delivery or for a decision are kept in the log, even if the disk is full.

A delayed message that is due after its topic was deleted gets a queue again, as in Java's broker. A master deletes such
queues when retention has deleted their messages; Java's broker only on the administrator's request 316.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyromq.broker.cold_reads import ColdReads, Fetching
from pyromq.broker.role import BrokerRole
from pyromq.broker.statistics import Statistics
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.net.tasks import Alarm
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import CleanQueues, DeleteExpiredLog, DeleteExpiredLogResponse
from pyromq.slow_work import loaded
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

STEP_SECONDS = 0.005  # longest time of one step of retention, which blocks the event loop
PAUSE_SECONDS = 0.02  # pause between two steps of retention that has more to do
IDLE_SECONDS = 1.0  # pause between two steps of retention that has nothing to do
_HOUR_MS = 3_600_000


class LogCleaning:
    """Runs retention in steps, and answers administrators' requests to clean up.

    Each function of `needed` returns the first log offset that a module must read after a crash. `step` returns the
    seconds until its next call; `alarm` fires if the call must come earlier.
    """

    def __init__(
        self,
        store: MessageStore,
        needed: Sequence[Callable[[], int]],
        *,
        topics: Topics,
        statistics: Statistics,
        role: BrokerRole,
        cold_reads: ColdReads,
        clock: Clock,
    ) -> None:
        self.alarm = Alarm(clock)
        self._fetching = Fetching(cold_reads, self.alarm)
        self._store = store
        self._topics = topics
        self._statistics = statistics
        self._role = role
        self._retention = store.retention
        self._trims = 0  # of retention, when queues of deleted topics were searched
        self._retention.needs += needed

    def step(self) -> float:
        """Run retention for at most `STEP_SECONDS`; return the seconds until the next call."""
        if self._fetching.is_under_way or self._fetching.lacks(self._retention.to_load()):
            return IDLE_SECONDS
        if not self._retention.step(STEP_SECONDS):
            return PAUSE_SECONDS
        if self._trims != self._retention.trims:
            self._trims = self._retention.trims
            self._delete_abandoned_queues()
        return IDLE_SECONDS

    def _delete_abandoned_queues(self) -> None:
        """Delete the queues without messages of topics that do not exist.

        A follower keeps them: its table of topics may be older than its log.
        """
        if not self._role.is_master:
            return
        deleted = self._topics.deleted_among(self._store.topics())
        expired = self._store.expired_ends() if deleted else {}
        for name in deleted:
            if len(expired.get(name, ())) == len(self._store.queue_ids(name)):
                self._store.delete_topic(name)
                self._statistics.forget_topic(name)

    @answers(DeleteExpiredLog)
    async def delete_expired(self, header: DeleteExpiredLog, call: Call) -> Reply:
        """Delete expired log files now, and in the next rounds of retention, at any hour.

        Return the number of files deleted now.
        """
        hours = header.older_than_hours
        if hours is not None and hours < 0:
            raise UsageError(f"olderThanHours is {hours}; it must be 0 or more")
        await loaded(self._retention.to_load())
        files = self._retention.expire_now(None if hours is None else hours * _HOUR_MS)
        logger.info("expired messages are deleted for %s: %d log files now", call.peer.address, files)
        return Reply(DeleteExpiredLogResponse(files=files, kept_from=self._retention.keep_from()))

    @answers(CleanQueues)
    def clean_queues(self, header: CleanQueues, call: Call) -> Reply:
        """Do nothing: retention of the commit log cleans the queues too."""
        return Reply()
