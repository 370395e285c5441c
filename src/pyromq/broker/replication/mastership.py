"""The decisions of a master in one epoch: the confirmed end of the log, the in-sync list, and planned failovers.

A record of the log is confirmed when every required replica has reported it under this epoch. A replica is required if
the in-sync list in the registry may contain the replica, or if the master is about to add it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from pyromq.broker.replication.peers import NEVER, Peer, Peers
from pyromq.broker.replication.record_view import RecordView
from pyromq.broker.replication.replica_actions import Actions, Confirmed, HandedOver, Serve
from pyromq.broker.replication.replica_port import ReplicaConfig, ReplicaLog
from pyromq.broker.replication.replica_stream import Report
from pyromq.broker.replication.set_record import Member, SetRecord
from pyromq.logs import logger_of

RETURN_SECONDS = 1.0  # time in which a replica whose connection broke must reconnect, or leaves the in-sync list
STEADY_SECONDS = 10.0  # time without lag before a replica that was removed for its lag is added again
# A replica that is at most this far behind the master's log becomes required, and is then added. Sends wait for it.
NEAR_SECONDS = 0.2
HAND_OVER_SECONDS = 1.0  # limit of the time in which sends wait for a planned failover
RECENT_SECONDS = 0.3  # a planned failover needs a report of the new master that is not older than this
_ANSWER_SECONDS = 0.5  # longest time that a planned failover waits until all stored records are confirmed
_MARK_SECONDS = 0.1  # time between two entries in the history of the log's end

_log = logger_of(__name__)


@dataclass(slots=True)
class Follower:
    """A replica that copies this master's log.

    `reported` is the log offset in its last report: the flushed end with `sync_flush`, else the written end.
    """

    member: Member
    sync_flush: bool
    reported: int = -1
    reported_at: float = NEVER
    lagged_at: float = NEVER  # last time at which it was behind by more than `lag_seconds`
    is_connected: bool = True
    left_at: float = NEVER


class Mastership:
    """A master's state in one epoch. Made when this replica becomes master, dropped when it steps down."""

    def __init__(self, config: ReplicaConfig, log: ReplicaLog, view: RecordView, *, peers: Peers, now: float) -> None:
        assert view.record is not None
        self.epoch = view.record.epoch
        self.start = log.end
        self._config = config
        self._log = log
        self._view = view
        self._peers = peers
        self._since = now
        self._followers: dict[Member, Follower] = {}
        self._joining: dict[Member, float] = {}  # replicas to be added -> time since they are required
        self._on_probation: set[Member] = set()  # replicas that were removed for their lag
        self._ends: deque[tuple[float, int]] = deque([(now, log.end)])  # the log's end at past times
        self._target: int | None = None  # number of the next master during a planned failover
        self._target_since = NEVER
        self._leaves = False  # this master stops after the planned failover
        self._disk_error: str | None = None
        self._served: Serve | None = None

    # -- followers

    def add_follower(self, member: Member, sync_flush: bool) -> None:
        """Begin to count the reports of a replica that has requested the log of this epoch."""
        known = self._followers.get(member)
        follower = Follower(member, sync_flush)
        if known is not None:
            follower.lagged_at = known.lagged_at
        self._followers[member] = follower

    def remove_follower(self, number: int, now: float) -> None:
        """Mark a replica as disconnected. Its last report still counts."""
        for follower in self._followers.values():
            if follower.member.number == number and follower.is_connected:
                follower.is_connected = False
                follower.left_at = now

    def report(self, now: float, member: Member, report: Report) -> str | None:
        """Store a follower's report. Return an error text if the report exceeds the log's end; None otherwise."""
        follower = self._followers.get(member)
        if follower is None or report.epoch != self.epoch:
            return None
        if max(report.written, report.flushed) > self._log.end:
            return f"replica {member.number} reports {report.written}, the log of epoch {self.epoch} ends before"
        follower.reported = report.flushed if follower.sync_flush else report.written
        follower.reported_at = now
        return None

    # -- confirmation

    def required(self) -> frozenset[Member]:
        """Return the replicas that must have reported a record before the record is confirmed."""
        return self._view.possible_members() | self._joining.keys()

    def confirm(self, now: float, renewed_at: float) -> Actions:
        """Raise the confirmed end to the smallest log end of the required replicas.

        Does nothing if this master may have been replaced.
        """
        members = self.required()
        if len(members - self._joining.keys()) < self._config.settings.min_in_sync:
            return []
        end = min(self._end_of(member) for member in members)
        if end <= self._log.confirmed_end or self.is_fenced(now, renewed_at):
            return []
        self._log.confirm(end)
        return [Confirmed(end)]

    def table_holders(self, now: float, renewed_at: float) -> frozenset[int] | str:
        """Return the numbers of the other replicas that must have a changed table on disk.

        A string is the reason why no change of a table can be confirmed now.
        """
        if (fence := self._fence_text(now, renewed_at)) is not None:
            return fence
        members = self.required()
        in_sync, least = len(members - self._joining.keys()), self._config.settings.min_in_sync
        if in_sync < least:
            return f"in sync: {in_sync}, asked for: {least}"
        return frozenset(member.number for member in members if member != self._config.member)

    def is_fenced(self, now: float, renewed_at: float) -> bool:
        """Whether another replica may be master now: the lease may be over, and not all followers report in time."""
        if now - renewed_at <= self._config.lease_seconds:
            return False
        if self._config.settings.unclean:
            return True
        others = (self._followers.get(member) for member in self.required() if member != self._config.member)
        return any(each is None or now - each.reported_at > self._config.lease_seconds for each in others)

    def _end_of(self, member: Member) -> int:
        if member == self._config.member:
            return min(self._log.end, self._log.flushed_end) if self._config.sync_flush else self._log.end
        follower = self._followers.get(member)
        return follower.reported if follower is not None else -1

    # -- served requests

    def serve(self, now: float, renewed_at: float) -> Actions:
        """Return a `Serve` action if the reasons to refuse sends or other requests have changed."""
        serve = Serve(self._why_no_sends(now, renewed_at), self._fence_text(now, renewed_at))
        if serve == self._served:
            return []
        self._served = serve
        return [serve]

    def _why_no_sends(self, now: float, renewed_at: float) -> str | None:
        fence = self._fence_text(now, renewed_at)
        record = self._view.record
        in_sync, least = len(record.in_sync) if record else 0, self._config.settings.min_in_sync
        if fence is not None:
            return fence
        if in_sync < least:
            return f"in sync: {in_sync}, asked for: {least}"
        if self._target is not None:
            return f"the master hands over to replica {self._target}"
        return self._disk_error

    def _fence_text(self, now: float, renewed_at: float) -> str | None:
        if not self.is_fenced(now, renewed_at):
            return None
        return f"no sign of the registry for {self._config.lease_seconds:g} s, nor of all followers"

    # -- the in-sync list

    def tick(self, now: float) -> None:
        """Add the log's end to its history, and find the followers that are behind. Called several times a second."""
        ends = self._ends
        if now - ends[-1][0] >= _MARK_SECONDS:
            ends.append((now, self._log.end))
            while len(ends) > 2 and ends[1][0] <= now - self._config.catchup_seconds:
                ends.popleft()
        for follower in self._followers.values():
            if follower.reported < self._end_at(now - self._config.lag_seconds):
                follower.lagged_at = now
        for member, since in list(self._joining.items()):
            follower_ = self._followers.get(member)
            is_gone = follower_ is None or not follower_.is_connected
            if is_gone or now - since > self._config.lag_seconds or member in self._view.possible_members():
                del self._joining[member]

    def shift(self, seconds: float) -> None:
        """Move all times by the length of a pause of this process, so that followers do not seem late."""
        self._since += seconds
        self._ends = deque((time + seconds, end) for time, end in self._ends)
        for follower in self._followers.values():
            follower.left_at += seconds
        self._joining = {member: since + seconds for member, since in self._joining.items()}

    def next_record(self, now: float, *, is_waiting: bool) -> SetRecord | None:
        """Return the set's record that this master wants to write; None if the known record need not change.

        `is_waiting`: sends wait for followers.
        """
        record = self._view.record
        if record is None or record.epoch != self.epoch or self._view.is_restored:
            return None
        if (handed := self._handed_over(now, record)) is not None:
            return handed
        wanted = frozenset(self._wanted(now, record, is_waiting=is_waiting))
        if wanted == frozenset(record.in_sync) and not self._view.has_open_swaps:
            return None
        if wanted != frozenset(record.in_sync):
            _log.info("in sync: %s instead of %s", sorted(m.number for m in wanted), [m.number for m in record.in_sync])
        return record.with_in_sync(wanted)

    def _wanted(self, now: float, record: SetRecord, *, is_waiting: bool) -> set[Member]:
        wanted = {self._config.member}
        for member in record.in_sync:
            if member != self._config.member and not self._must_leave(now, record, member, is_waiting=is_waiting):
                wanted.add(member)
        for member, follower in self._followers.items():
            if member not in record.in_sync and self._may_join(now, follower):
                self._joining.setdefault(member, now)
                if follower.reported >= max(self._log.confirmed_end, self.start):
                    wanted = {each for each in wanted if each.number != member.number} | {member}
        return wanted

    def _must_leave(self, now: float, record: SetRecord, member: Member, *, is_waiting: bool) -> bool:
        follower = self._followers.get(member)
        peer = self._peers[member.number]
        if peer.member not in (None, member) or self._is_leaving(peer):
            return True
        if follower is None or not follower.is_connected:
            if peer.is_dead() and len(self._peers.in_sync(record)) + 1 >= self._config.settings.min_in_sync:
                return True  # otherwise sends wait for its return, instead of being refused
            return now - max(self._since, follower.left_at if follower else NEVER) > RETURN_SECONDS
        since = max(self._since, follower.reported_at)
        if is_waiting and follower.reported < self._end_at(now - self._config.lag_seconds):
            self._on_probation.add(member)
            return True
        is_behind = follower.reported < self._end_at(now - self._config.catchup_seconds)
        return is_behind or now - since > self._config.catchup_seconds

    def _may_join(self, now: float, follower: Follower) -> bool:
        peer = self._peers[follower.member.number]
        if not follower.is_connected or peer.member != follower.member or self._is_leaving(peer):
            return False
        if follower.member in self._on_probation and now - follower.lagged_at < STEADY_SECONDS:
            return False
        return follower.reported >= max(self.start, self._end_at(now - NEAR_SECONDS))

    @staticmethod
    def _is_leaving(peer: Peer) -> bool:
        return peer.hello is not None and peer.hello.is_leaving

    def _end_at(self, time: float) -> int:
        """Return the log's end at a past time; 0 for a time before this epoch."""
        return max((end for at, end in self._ends if at <= time), default=0)

    # -- planned failover

    @property
    def is_handing_over(self) -> bool:
        return self._target is not None

    def hand_over(self, now: float, number: int, *, is_leaving: bool = False) -> Actions:
        """Begin a planned failover to an in-sync replica. With `is_leaving`, this master also leaves the list."""
        record = self._view.record
        follower = self._follower(number)
        if number == self._config.member.number:
            return [HandedOver(f"replica {number} is the master already")]
        if record is None or follower is None or follower.member not in record.in_sync:
            listed = [member.number for member in record.in_sync] if record else []
            return [HandedOver(f"replica {number} is not in sync; in sync are {listed}")]
        if not follower.is_connected:
            return [HandedOver(f"replica {number} is not connected to the master")]
        self._target, self._target_since, self._leaves = number, now, is_leaving
        return []

    def tick_hand_over(self, now: float) -> Actions:
        """Give up a planned failover that takes too long. An unanswered write of the record may still complete it."""
        if self._target is None or now - self._target_since <= HAND_OVER_SECONDS:
            return []
        number, self._target = self._target, None
        return [HandedOver(f"replica {number} did not reach the log's end within {HAND_OVER_SECONDS:g} s")]

    def best_successor(self) -> int | None:
        """Return the connected in-sync replica with the longest log."""
        in_sync = self._view.record.in_sync if self._view.record else ()
        best = max((f for f in self._followers.values() if f.is_connected and f.member in in_sync), default=None,
                   key=lambda follower: follower.reported)  # fmt: skip
        return best.member.number if best else None

    def disk_failed(self, error: str | None) -> None:
        """Refuse sends with the disk's error; None: the disk works again."""
        self._disk_error = error

    def _handed_over(self, now: float, record: SetRecord) -> SetRecord | None:
        follower = self._follower(self._target)
        if follower is None or not follower.is_connected or follower.member not in record.in_sync:
            return None
        if follower.reported < self._log.end or now - follower.reported_at > RECENT_SECONDS:
            return None
        # Waiting sends are confirmed first: the failover would refuse them, and clients would send duplicates.
        if self._log.confirmed_end < self._log.end and now - self._target_since < _ANSWER_SECONDS:
            return None
        # This master restarts its broker. If enough others are in sync, it leaves the list: no send waits for it.
        others = tuple(each for each in record.in_sync if each != self._config.member)
        is_free = self._leaves or len(others) >= max(2, self._config.settings.min_in_sync)
        in_sync = others if is_free else record.in_sync
        return msgspec.structs.replace(record, epoch=record.epoch + 1, master=follower.member.number, in_sync=in_sync)

    def _follower(self, number: int | None) -> Follower | None:
        found = [each for each in self._followers.values() if each.member.number == number]
        return next((each for each in found if each.is_connected), None) or next(iter(found), None)
