"""One replica of a set as a state machine: events in, actions out. No sockets, no registry, no clock, no event loop.

`ReplicaServer` calls one method of `Replica` for each event, and carries out the returned actions
(`replica_actions.py`). `now` is seconds of CLOCK_BOOTTIME, which also counts while a machine is suspended. `Replica`
uses the store through `ReplicaLog` and `EpochFile`. Promises and epochs are on disk before a method returns.

Rules: only a replica of the registry's in-sync list is elected. A replica that has promised an epoch refuses all lower
epochs. A master confirms a record when every required replica has reported the record under the master's epoch.
"""

from __future__ import annotations

from pyromq.broker.replication.election import ACCEPTED_SECONDS, RESTORED, Election, OperatorConsent
from pyromq.broker.replication.joining import (
    MayFollow,
    MustCut,
    MustReplace,
    MustStop,
    first_step,
)
from pyromq.broker.replication.mastership import Mastership
from pyromq.broker.replication.peers import DEATH_SECONDS, DIAL_SECONDS, NEVER, SILENT_SECONDS, Peer, Peers
from pyromq.broker.replication.record_view import RecordView
from pyromq.broker.replication.replica_actions import (
    Action,
    Actions,
    AskOperator,
    BecomeMaster,
    CloseLink,
    Confirmed,
    CutLog,
    Dial,
    Feed,
    FollowMaster,
    HandedOver,
    Link,
    MayLeave,
    Reading,
    ReplaceLog,
    SendHello,
    SendReport,
    SendRequest,
    StepDown,
    StopReplica,
)  # fmt: skip
from pyromq.broker.replication.replica_port import ReplicaConfig, ReplicaLog
from pyromq.broker.replication.replica_stream import (
    HEARTBEAT_SECONDS,
    VERSION,
    Frame,
    FrameRequest,
    Hello,
    RecordMark,
    Report,
)  # fmt: skip
from pyromq.broker.replication.set_record import SetRecord
from pyromq.errors import StoreError
from pyromq.logs import logger_of
from pyromq.store.epoch_file import CommonPoint, EpochFile

TICK_SECONDS = 0.05  # how often `tick` must be called
PAUSE_SECONDS = 0.5  # a longer time between two ticks means that this process was paused
DISK_RETRY_SECONDS = 10.0  # time after an error of the disk before a follower follows again, or can be elected
LEAVE_SECONDS = 1.0  # longest time that a follower's stop waits until it has left the in-sync list

_log = logger_of(__name__)


class Replica:
    """The decisions of one replica, from the opening of its log until a cut, a step down or a stop.

    Each method is one event, and returns the actions that follow, in order. After a `StepDown`, `CutLog`, `ReplaceLog`
    or `StopReplica`, all methods return no actions: the caller reopens the log and makes a new `Replica`.

    The caller must report the result of each action that names a result, even a late result. The caller must call
    methods in the order of the bytes of a link, and none for a closed link. With synchronous flush, the caller must
    flush a follower's log as the log grows, and then call `log_grew`.
    """

    def __init__(self, config: ReplicaConfig, log: ReplicaLog, epochs: EpochFile, *, now: float) -> None:
        self.config = config
        self.log = log
        self.epochs = epochs
        self.view = RecordView()
        self.peers = Peers(config.member.number)
        self.mastership: Mastership | None = None
        self.following: tuple[int, int] | None = None  # number and epoch of the master whose frames are accepted
        self.is_over = False
        self._election = Election(config, log, epochs, peers=self.peers, view=self.view, now=now)
        self._last_tick = now
        self._renewed_at = now
        self._reported_at = NEVER
        self._report: Report | None = None
        self._trouble: str | None = None
        self._leaving_since: float | None = None
        self._disk_failed_at = NEVER
        self._may_lead_at = NEVER  # after a failed write of an epoch: until then another replica can be elected
        self._refusals: set[tuple[int, str]] = set()  # replica and reason of the refusals that were logged
        self._must_join_again = False  # the record must be read first: it shows whether the log may be cut
        self._accepted: OperatorConsent | None = None  # from `accept_loss` until an election ends

    # -- state

    @property
    def is_master(self) -> bool:
        return self.mastership is not None

    @property
    def epoch(self) -> int:
        """The highest epoch that this replica has promised."""
        return self.epochs.promised

    # -- time

    def tick(self, now: float, *, is_waiting: bool = True) -> Actions:
        """Check all time limits. Must be called every `TICK_SECONDS`. `is_waiting`: sends wait for confirmation."""
        if self.is_over:
            return []
        if now - self._last_tick > PAUSE_SECONDS:
            self._forgive(now - self._last_tick)
        self._last_tick = now
        actions = self._dial(now)
        if self.mastership is not None:
            self.mastership.tick(now)
            actions += self.mastership.tick_hand_over(now)
        else:
            actions += self._tick_follower(now)
        actions += self._ask_registry(now, is_waiting=is_waiting)
        actions += self._settle(now)
        return actions

    # -- the registry

    def record_changed(self, now: float) -> Actions:
        """Read the set's record, because a key of the set may have changed in the registry."""
        self.view.request_read()
        read = None if self.is_over else self.view.read_now(now)
        return [read] if read else []

    def record_read(self, now: float, number: int, reading: Reading) -> Actions:
        """Act on the record that `ReadRecord` has found."""
        if self.is_over or not self.view.read_answered(number, reading):
            return []
        self.peers.know(set(reading.replicas))
        if reading.record is not None:
            self.peers.know({member.number for member in reading.record.in_sync})
        return self._dial(now) + self._record_learnt(now)

    def read_failed(self, now: float, number: int) -> Actions:
        """Read the record again after a pause, because the registry did not answer `ReadRecord`."""
        self.view.read_failed(number)
        return []

    def swap_done(self, now: float, number: int, revision: int) -> Actions:
        """Act on the record that `SwapRecord` has written at this revision."""
        if self.is_over or self.view.swap_done(number, revision) is None:
            return []
        return self._record_learnt(now)

    def swap_failed(self, now: float, number: int) -> Actions:
        """Read the record, because `SwapRecord` had a conflict, or got no answer and may have written the key."""
        self.view.swap_failed(number)
        read = None if self.is_over else self.view.next_read(now)
        return [read] if read else []

    def lease_renewed(self, now: float, sent: float) -> Actions:
        """Store the time `sent` at which the request that granted or renewed the lease was sent."""
        self._renewed_at = max(self._renewed_at, sent)
        return []

    # -- links

    def connected(self, now: float, number: int) -> Actions:
        """Send the hello on the connection that `Dial` has opened."""
        if self.is_over:
            return []
        peer = self.peers[number]
        if peer.has_our_link:
            self._unlink(now, Link(number, True))
        peer.is_dialling, peer.has_our_link, peer.heard_at, peer.connected_at = False, True, now, now
        peer.has_answered = False
        peer.refused_at.clear()
        return [self._hello_to(Link(number, True))]

    def refused(self, now: float, number: int) -> Actions:
        """Count a failed `Dial`: both ports of the replica refused the connection, so its process may have ended."""
        peer = self.peers[number]
        peer.is_dialling = False
        peer.refused_at.append(now)
        peer.may_dial_at = now + (DEATH_SECONDS if len(peer.refused_at) == 1 else DIAL_SECONDS)
        return [] if self.is_over else self._ask_registry(now)

    def disconnected(self, now: float, link: Link) -> Actions:
        """Mark a link as closed after the connection broke, or after `Dial` failed without a refusal."""
        if link.number == self.config.member.number:
            return []  # a process with a copy of this folder; its hello was refused
        self._unlink(now, link)
        return [] if self.is_over else self._dial(now)

    def hello_received(self, now: float, link: Link, hello: Hello) -> Actions:
        """Check a hello, and act on its epoch and role. The first hello on an accepted connection opens the link."""
        if self.is_over:
            return []
        refusal = self._why_refused(hello)
        if refusal is not None:
            return self._refuse(now, link, refusal)
        peer = self.peers[hello.number]
        if link.is_ours and not peer.has_our_link:
            return []  # the link was closed meanwhile
        self._note_hello(now, peer, link, hello)
        actions: Actions = []
        if hello.epoch > self.epochs.promised:
            actions += self._higher_epoch(now, hello)
        if self.is_over:
            return actions
        if not link.is_ours:
            actions.append(self._hello_to(link))
        elif hello.is_master and hello.epoch == self.epochs.promised and self.following != (hello.number, hello.epoch):
            actions += self._join(now, hello)
        return actions

    # -- the master's side

    def request_received(self, now: float, number: int, request: FrameRequest) -> Actions:
        """Begin to send the log to a follower, unless its log differs from the master's."""
        link = Link(number, False)
        peer = self.peers[number]
        if self.is_over or self.mastership is None or request.epoch != self.mastership.epoch or peer.member is None:
            return [] if self.is_over else [self._hello_to(link)]
        if request.start > self.log.end or not self._has_mark(request.mark):
            text = f"the log of replica {number} differs from the master's before {request.start}"
            _log.error("%s", text)
            return self._close(now, link, text)
        assert peer.hello is not None
        self.mastership.add_follower(peer.member, peer.hello.sync_flush)
        return [Feed(number, request.epoch, request.start)]

    def _has_mark(self, mark: RecordMark | None) -> bool:
        """Whether this log has the follower's last record. True if that record lies before this log's first byte."""
        return mark is None or mark.offset < self.log.first or self.log.mark_at(mark.offset) == mark

    def report_received(self, now: float, number: int, report: Report) -> Actions:
        """Store a follower's report, and confirm the records that all required replicas have."""
        peer = self.peers[number]
        if self.is_over or self.mastership is None or peer.member is None:
            return []
        refusal = self.mastership.report(now, peer.member, report)
        if refusal is not None:
            link = Link(number, False)
            return self._close(now, link, refusal)
        peer.end = report.written
        actions = self.mastership.confirm(now, self._renewed_at)
        return actions + self._ask_registry(now) if self.mastership.is_handing_over else actions

    def table_holders(self, now: float) -> frozenset[int] | str:
        """Return the numbers of the other replicas that must have a changed table, or why none can be confirmed."""
        if self.is_over or self.mastership is None:
            return "this replica is not the master any more"
        return self.mastership.table_holders(now, self._renewed_at)

    def log_grew(self, now: float) -> Actions:
        """After records were appended or flushed: confirm them (master), or report the flushed end (follower)."""
        if self.is_over:
            return []
        if self.mastership is not None:
            return self.mastership.confirm(now, self._renewed_at)
        return self._new_report(now)

    # -- the follower's side

    def frame_received(self, now: float, number: int, frame: Frame) -> Actions:
        """Append a frame of the master's log, or store the heartbeat, from the link that this replica has dialled."""
        peer = self.peers[number]
        if self.is_over or not peer.has_our_link:
            return []
        peer.heard_at = now
        if frame.epoch < self.epochs.promised:
            return []
        hello = peer.hello
        if hello is not None and hello.is_master and hello.epoch == frame.epoch:
            peer.heard_as_master_at = now
        if not frame.data:
            peer.end = max(peer.end, frame.offset)  # a report on the other link may be newer; a cut log needs a hello
        if self.following != (number, frame.epoch):
            return []
        if frame.data and frame.offset != self.log.written_end:
            text = f"a frame of offset {frame.offset} does not begin at the log's end {self.log.written_end}"
            return self._close(now, Link(number, True), text)
        try:
            if frame.data:
                self.log.append_bytes(frame.offset, frame.data)
        except StoreError as error:
            return self.disk_failed(now, str(error))
        peer.end = max(peer.end, self.log.written_end)
        actions: Actions = []
        end = min(frame.confirmed, self.log.end)
        if end > self.log.confirmed_end:
            self.log.confirm(end)
            actions.append(Confirmed(end))
        return actions + (self._new_report(now) if frame.data else [])

    # -- requests of operators and of the process

    def hand_over(self, now: float, number: int) -> Actions:
        """Begin a planned failover to another replica. Its end is `StepDown`, or `HandedOver` after a failure."""
        if self.is_over or self.mastership is None:
            return [] if self.is_over else [HandedOver("this replica is not the master")]
        return self.mastership.hand_over(now, number) + self._settle(now)

    def accept_loss(self, now: float, reason: str) -> Actions:
        """Elect this replica although it is not in sync, because an operator accepts the loss of messages.

        The set's record keeps the loss for ever. The operator's consent ends after `ACCEPTED_SECONDS`, or when another
        replica is elected: a later election could lose messages that the operator did not give up. A master whose
        registry was restored from a backup writes the record again, and becomes master of a higher epoch.
        """
        if not self.is_over and (self.mastership is None or self.view.is_restored):
            self._accepted = OperatorConsent(reason, now + ACCEPTED_SECONDS, self.view.record)
            return self._ask_registry(now)
        return []

    def leave(self, now: float) -> Actions:
        """Before a stop of the process: hand over (master), or leave the in-sync list. `MayLeave` follows."""
        if self.is_over or self._leaving_since is not None:
            return []
        self._leaving_since = now
        if self.mastership is not None:
            successor = self.mastership.best_successor()
            if successor is None:
                return [MayLeave()]
            return self.mastership.hand_over(now, successor, is_leaving=True) + self._settle(now)
        actions = self._hello_to_all(is_ours=True)
        return actions or [MayLeave()]

    def disk_failed(self, now: float, error: str) -> Actions:
        """After a failed write to the disk: hand over (master), or leave the in-sync list (follower)."""
        self._disk_failed_at = now
        if self.mastership is None:
            _log.error("the replica leaves the in-sync list: %s", error)
            return self._stop_following(now)
        self.mastership.disk_failed(error)
        successor = self.mastership.best_successor()
        return self._settle(now) if successor is None else self.hand_over(now, successor)

    def disk_works(self, now: float) -> Actions:
        """After writes to the disk succeed again: accept sends (master), or follow the master again (follower)."""
        self._disk_failed_at = NEVER
        if self.is_over:
            return []
        if self.mastership is not None:
            self.mastership.disk_failed(None)
            return self._settle(now)
        return self._hello_to_all(is_ours=True)

    # -- hello

    def _why_refused(self, hello: Hello) -> str | None:
        config = self.config
        if (hello.cluster, hello.set_name) != (config.cluster, config.set_name):
            return f"it is of {hello.cluster}/{hello.set_name}, this replica of {config.cluster}/{config.set_name}"
        if hello.number == config.member.number:
            return f"two replicas have the number {hello.number}: one folder was copied, or --replica is wrong"
        return config.settings.difference(hello.settings)

    def _refuse(self, now: float, link: Link, reason: str) -> Actions:
        if (link.number, reason) not in self._refusals:  # a refused replica connects again twice a second
            self._refusals.add((link.number, reason))
            _log.error("replica %s is refused: %s", link.number, reason)
        return self._close(now, link, reason)

    def _note_hello(self, now: float, peer: Peer, link: Link, hello: Hello) -> None:
        if link.is_ours:
            peer.heard_at, peer.has_answered = now, True
        else:
            if not peer.has_their_link and self.mastership is not None:
                self.mastership.remove_follower(peer.number, now)
            peer.has_their_link = True
        if hello.is_master:
            peer.heard_as_master_at = now
            peer.follows_since = NEVER
        elif peer.hello is None or peer.hello.is_master or peer.hello.incarnation != hello.incarnation:
            peer.follows_since = now
        peer.hello = hello
        peer.end = hello.end
        peer.refused_at.clear()

    def _hello_to(self, link: Link) -> Action:
        config = self.config
        hello = Hello(
            VERSION, config.cluster, config.set_name, config.member.number, config.member.incarnation,
            self.epochs.promised, self.is_master, tuple(self.epochs.lines), self.log.first, self.log.end,
            config.sync_flush, config.settings, self._is_leaving,
        )  # fmt: skip
        return SendHello(link, hello)

    def _hello_to_all(self, *, is_ours: bool) -> Actions:
        peers = (peer for peer in self.peers.all() if (peer.has_our_link if is_ours else peer.has_their_link))
        return [self._hello_to(Link(peer.number, is_ours)) for peer in peers]

    @property
    def _is_leaving(self) -> bool:
        return self._leaving_since is not None or self._disk_failed_at != NEVER

    def _higher_epoch(self, now: float, hello: Hello) -> Actions:
        """Promise the epoch of a hello if its sender is master, or step down. In any case read the set's record."""
        if not hello.is_master:
            return self.record_changed(now)
        if self.mastership is not None:
            return self._step_down(hello.number, f"replica {hello.number} is master of epoch {hello.epoch}")
        self.following = None
        try:
            self.epochs.promise(hello.epoch)
        except StoreError as error:
            return self.disk_failed(now, str(error))
        return self.record_changed(now)

    # -- following

    def _join(self, now: float, hello: Hello) -> Actions:
        if self._disk_failed_at != NEVER or self.mastership is not None:
            return []
        self.log.drop_incomplete()
        match first_step(self.log, self.epochs, hello):
            case MustStop(reason):
                return self._end(StopReplica(reason))
            case MustReplace(reason):
                return self._end(ReplaceLog(hello.first, reason))
            case MustCut(point):
                return self._cut(now, hello, point)
            case MayFollow(common, request):
                try:
                    self.epochs.adopt(hello.lines, common)
                except StoreError as error:
                    return self.disk_failed(now, str(error))
                self.following = (hello.number, hello.epoch)
                self._report = None
                return [SendRequest(hello.number, request), FollowMaster(*self.following), *self._new_report(now)]

    def _stop_following(self, now: float) -> Actions:
        """Close the link to the master, so that late frames are not appended after a new request."""
        if self.following is None:
            return []
        link = Link(self.following[0], True)
        return self._close(now, link)

    def _cut(self, now: float, hello: Hello, point: CommonPoint) -> Actions:
        """Cut the log at the common point. Confirmed bytes are cut only if the record lists a loss in a later epoch."""
        if point.end >= self.log.confirmed_end:
            return self._end(CutLog(point.end, hello.epoch, self.log.confirmed_end))
        record = self.view.record
        if record is None or record.epoch < hello.epoch:
            self._must_join_again = True
            return self.record_changed(now)
        text = f"the master's log differs from {point.end} on, but up to {self.log.confirmed_end} all was confirmed"
        _log.error("%s", text)
        is_unclean = any(loss.epoch > point.epoch for loss in record.losses)
        return self._end(CutLog(point.end, hello.epoch, 0) if is_unclean else StopReplica(text))

    def _new_report(self, now: float, *, is_repeated: bool = False) -> Actions:
        if self.following is None:
            return []
        number, epoch = self.following
        report = Report(epoch, self.log.written_end, min(self.log.flushed_end, self.log.written_end))
        if report == self._report and not is_repeated:
            return []
        self._report, self._reported_at = report, now
        return [SendReport(number, report)]

    def _tick_follower(self, now: float) -> Actions:
        actions: Actions = []
        if now - self._reported_at >= HEARTBEAT_SECONDS:
            actions += self._new_report(now, is_repeated=True)
        if self._disk_failed_at != NEVER and now - self._disk_failed_at > DISK_RETRY_SECONDS:
            actions += self.disk_works(now)
        if self._leaving_since is not None:
            actions += self._may_leave(now, self._leaving_since)
        return actions

    def _may_leave(self, now: float, since: float) -> Actions:
        record = self.view.record
        has_left = self.view.read_at > since and record is not None and not record.is_in_sync(self.config.member)
        self.view.request_read()
        return [MayLeave()] if has_left or now - since > LEAVE_SECONDS else []

    # -- the registry

    def _ask_registry(self, now: float, *, is_waiting: bool = True) -> Actions:
        """Return the read or the compare-and-swap of the set's record that is due, if any."""
        if (self.view.is_known and not self.view.is_waiting and self._leaving_since is None) or self.mastership:
            wanted = self._wanted_record(now, is_waiting=is_waiting)
            if wanted is not None:
                return [self.view.swap(wanted)]
        read = self.view.next_read(now)
        return [read] if read else []

    def _wanted_record(self, now: float, *, is_waiting: bool) -> SetRecord | None:
        if self.view.is_waiting:
            return None
        if self._accepted is not None:
            if self.following is None and self._accepted.holds(now, self.view.record):
                return self._election.unclean_record(self._accepted.reason)
            self._accepted = None
        if self.mastership is not None:
            return self.mastership.next_record(now, is_waiting=is_waiting)
        return None if now < self._may_lead_at else self._election.next_record(now)

    def _record_learnt(self, now: float) -> Actions:
        """Act on the set's record after a read or a write: become master, step down, or follow."""
        record, member = self.view.record, self.config.member
        if record is None:
            return self._settle(now)
        if self.mastership is not None:
            if record.epoch > self.mastership.epoch:
                return self._step_down(record.master, f"the registry's record is of epoch {record.epoch}")
            return self._settle(now)
        if record.epoch > self.epochs.promised and record.master == member.number and record.is_in_sync(member):
            return self._become_master(now, record)
        again, self._must_join_again = self._must_join_again, False
        return (self._hello_to_all(is_ours=True) if again else []) + self._ask_registry(now)

    def _become_master(self, now: float, record: SetRecord) -> Actions:
        self.following = None
        self._accepted = None
        self.log.drop_incomplete()
        try:
            self.epochs.promise(record.epoch)
            self.epochs.begin(record.epoch, self.log.end, log_begin=self.log.first)
        except StoreError as error:
            self._may_lead_at = now + DISK_RETRY_SECONDS
            return self.disk_failed(now, str(error))
        self.mastership = Mastership(self.config, self.log, self.view, peers=self.peers, now=now)
        if record.losses and record.losses[-1].epoch == record.epoch:
            _log.error("messages after log offset %d may be lost: %s", self.log.end, record.losses[-1].reason)
        actions: Actions = [BecomeMaster(record.epoch)]
        return actions + self._hello_to_all(is_ours=False) + self._settle(now)

    def _settle(self, now: float) -> Actions:
        """Return the actions for a new confirmed end, new reasons to refuse requests, or a new trouble of the set."""
        actions: Actions = []
        trouble = self._election.trouble
        if self.mastership is not None:
            actions += self.mastership.confirm(now, self._renewed_at)
            actions += self.mastership.serve(now, self._renewed_at)
            trouble = f"{RESTORED}; no replica joins or leaves the set" if self.view.is_restored else None
        if trouble != self._trouble:
            self._trouble = trouble
            actions.append(AskOperator(trouble))
        return actions

    def _step_down(self, master: int | None, reason: str) -> Actions:
        return self._end(StepDown(master, reason))

    def _end(self, action: Action) -> Actions:
        self.is_over = True
        self.mastership = None
        self.following = None
        return [action]

    # -- links

    def _close(self, now: float, link: Link, reason: str = "") -> Actions:
        if link.number != self.config.member.number:  # a process with a copy of this folder has this replica's number
            self._unlink(now, link)
        return [CloseLink(link, reason)]

    def _unlink(self, now: float, link: Link) -> None:
        """Mark a link as closed. A link that lasted for `SILENT_SECONDS` is dialled again at once."""
        peer = self.peers[link.number]
        if not link.is_ours:
            peer.has_their_link = False
            if self.mastership is not None:
                self.mastership.remove_follower(link.number, now)
            return
        has_lasted = peer.has_our_link and now - peer.connected_at > SILENT_SECONDS
        peer.may_dial_at = now if has_lasted else now + DIAL_SECONDS
        peer.is_dialling = peer.has_our_link = peer.has_answered = False
        peer.heard_at = NEVER
        if self.following is not None and self.following[0] == link.number:
            self.following = None

    def _dial(self, now: float) -> Actions:
        """Connect to replicas that are not connected, and close links without a message for `SILENT_SECONDS`."""
        actions: Actions = []
        for peer in self.peers.all():
            if peer.has_our_link and now - peer.heard_at > SILENT_SECONDS:
                link = Link(peer.number, True)
                actions += self._close(now, link)
            if not peer.has_our_link and not peer.is_dialling and now >= peer.may_dial_at:
                peer.is_dialling = True
                actions.append(Dial(peer.number))
        return actions

    def _forgive(self, seconds: float) -> None:
        self.peers.shift(seconds)
        self._election.shift(seconds)
        if self.mastership is not None:
            self.mastership.shift(seconds)
