"""Decides when a follower tries to become master: only if it is in sync, and the master has failed or is silent.

An election while the master still works costs availability, but never messages. The registry accepts one of several
concurrent elections. The old master confirms nothing without reports of the replicas that were in sync.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pyromq.broker.replication.peers import SILENT_SECONDS, Peers, standing
from pyromq.broker.replication.record_view import RecordView
from pyromq.broker.replication.replica_port import ReplicaConfig, ReplicaLog
from pyromq.broker.replication.set_record import Loss, Member, SetRecord
from pyromq.store.epoch_file import EpochFile

TURN_SECONDS = 0.1  # a candidate waits this long for each connected in-sync replica with a longer log
FIRST_START_SECONDS = 0.5  # a new set waits this long after a start for replicas with longer logs
RESTORED = "the registry has an older revision of the set's record than before: was it restored from a backup?"
ACCEPTED_SECONDS = 10.0  # time after an operator's consent to a loss in which the election may happen
POWER_CUT = "all replicas that were in sync returned with another incarnation"


@dataclass(frozen=True, slots=True)
class OperatorConsent:
    """An operator's consent that this replica becomes master although confirmed messages may be lost.

    `record` is the set's record at the time of the consent.
    """

    reason: str
    until: float
    record: SetRecord | None

    def holds(self, now: float, record: SetRecord | None) -> bool:
        """Whether the consent is at most `ACCEPTED_SECONDS` old, and no replica has been elected since."""
        then = self.record.epoch if self.record is not None else 0
        return now <= self.until and then == (record.epoch if record is not None else 0)


class Election:
    """Decides for a follower whether the set needs another master, and whether this replica should be elected."""

    def __init__(
        self, config: ReplicaConfig, log: ReplicaLog, epochs: EpochFile, *, peers: Peers, view: RecordView, now: float
    ) -> None:
        self._config = config
        self._log = log
        self._epochs = epochs
        self._peers = peers
        self._view = view
        self._started_at = now
        self._gone_since: float | None = None
        self._named = (0, now)  # epoch of the known record, and the time at which this replica first read that epoch
        self.trouble: str | None = None  # why no replica can be elected

    def next_record(self, now: float) -> SetRecord | None:
        """Return the record that makes this replica master; None while this replica should not be elected."""
        self.trouble = self._registry_trouble()
        if self.trouble is not None:
            return None
        record = self._view.record
        if record is None:
            return self._first_record(now)
        if record.epoch != self._named[0]:
            self._named = (record.epoch, now)
        if record.epoch < self._epochs.promised or not self._is_master_gone(now, record):
            self._gone_since = None
            return None
        if self._gone_since is None:
            self._gone_since = now
            self._view.request_read()
        if record.is_in_sync(self._config.member):
            is_turn = now - self._gone_since >= self._turn(record) * TURN_SECONDS
            return self._elected(record) if is_turn else None
        return self._out_of_sync(now, record)

    def shift(self, seconds: float) -> None:
        """Move all times by the length of a pause of this process, in which it received no frames."""
        self._started_at += seconds
        self._named = (self._named[0], self._named[1] + seconds)
        self._gone_since = None

    def unclean_record(self, reason: str) -> SetRecord:
        """Return the record that elects this replica although it is not in sync. Confirmed records may be lost."""
        record = self._view.record
        epoch = max(self._epochs.promised, record.epoch if record else 0) + 1
        in_sync = record.in_sync if record else ()
        loss = Loss(epoch, self._config.member.number, self._log.end, in_sync, reason)
        losses = (*(record.losses if record else ()), loss)
        preferred = record.preferred if record else None
        return SetRecord(epoch, self._config.member.number, (self._config.member,), preferred, losses)

    def _registry_trouble(self) -> str | None:
        record, promised = self._view.record, self._epochs.promised
        if self._view.is_restored:
            return RESTORED
        if record is None and (promised or self._others_have_epochs()):
            return f"the registry has no record of the set, but a replica has promised epoch {max(promised, 1)}"
        if record is not None and record.epoch < promised:
            return f"the registry's record is of epoch {record.epoch}, this replica has promised epoch {promised}"
        return None

    def _others_have_epochs(self) -> bool:
        helloes = (peer.hello for peer in self._peers.all() if peer.hello)
        infos = self._view.replicas.values()
        return any(hello.epoch for hello in helloes) or any(info.last_epoch for info in infos)

    def _first_record(self, now: float) -> SetRecord | None:
        """Return the first record of a new set; None if another replica has a longer log, or right after a start."""
        longer = [info for info in self._view.replicas.values() if self._goes_before(info.end, info.number)]
        if longer or now - self._started_at < FIRST_START_SECONDS:
            return None
        return SetRecord(1, self._config.member.number, (self._config.member,))

    def _goes_before(self, end: int, number: int) -> bool:
        """Whether another replica has a longer log than this one."""
        return number != self._config.member.number and (end > self._log.end)

    def _is_master_gone(self, now: float, record: SetRecord) -> bool:
        if record.master is None or record.master == self._config.member.number:
            return True
        master = self._peers[record.master]
        if master.is_dead():
            return True
        heard_at = max(master.heard_as_master_at, self._started_at, self._named[1])
        if now - heard_at < SILENT_SECONDS:
            return False
        if master.is_passive(record.epoch):
            is_listed = master.member in record.in_sync
            return not is_listed or now - max(master.follows_since, heard_at) >= SILENT_SECONDS
        if self._view.read_at >= heard_at + SILENT_SECONDS and record.master not in self._view.replicas:
            return True
        self._view.request_read()
        return False

    def _turn(self, record: SetRecord) -> int:
        """Return the number of connected in-sync replicas that have a longer log, or that the record prefers."""
        own = self._config.member.number
        if record.preferred == own:
            return 0
        mine = standing(self._epochs.lines, self._log.end)
        rivals = self._peers.in_sync(record)
        return sum(peer.standing > mine or peer.number == record.preferred for peer in rivals)

    def _elected(self, record: SetRecord) -> SetRecord:
        own = self._config.member
        reached = {peer.member for peer in self._peers.in_sync(record)} | {own}
        in_sync = tuple(sorted(member for member in reached if member is not None))
        return msgspec.structs.replace(record, epoch=record.epoch + 1, master=own.number, in_sync=in_sync)

    def _out_of_sync(self, now: float, record: SetRecord) -> SetRecord | None:
        """Return a record that makes this replica master although it is not in sync; None if that is not permitted.

        Such an election is permitted after a power loss, or with `enableElectUncleanMaster`, if no replica that was in
        sync is left.
        """
        assert self._gone_since is not None
        if self._view.read_at < self._gone_since or any(self._is_alive(member) for member in record.in_sync):
            return None
        if self._is_longest_of_all(record):
            return self.unclean_record(POWER_CUT)
        if self._config.settings.unclean and self._has_waited(now):
            return self.unclean_record("enableElectUncleanMaster is set")
        listed = ", ".join(f"replica {member.number}" for member in record.in_sync)
        ends = {peer.number: peer.end for peer in self._peers.all() if peer.is_connected}
        ends[self._config.member.number] = self._log.end
        self.trouble = f"no replica that was in sync is left ({listed}); the logs end at {dict(sorted(ends.items()))}"
        return None

    def _is_alive(self, member: Member) -> bool:
        if member.number == self._config.member.number:
            return member == self._config.member
        peer = self._peers[member.number]
        info = self._view.replicas.get(member.number)
        return peer.member == member or (info is not None and info.incarnation == member.incarnation)

    def _is_longest_of_all(self, record: SetRecord) -> bool:
        """Whether all replicas that were in sync are connected again, and this replica has the longest log of all.

        For the state after a power loss: all these replicas may have lost the last bytes of their logs. A replica that
        was not in sync may have the longest log, too. A replica that has lost its folder does not count as back.
        """
        own = self._config.member.number
        others = [peer for peer in self._peers.all() if peer.is_connected and peer.hello and peer.hello.lines]
        back = {peer.number for peer in others} | ({own} if self._epochs.lines else set())
        if own not in back or not back.issuperset(member.number for member in record.in_sync):
            return False
        mine = (*standing(self._epochs.lines, self._log.end), -own)
        return all((*peer.standing, -peer.number) < mine for peer in others)

    def _has_waited(self, now: float) -> bool:
        return self._gone_since is not None and now - self._gone_since >= self._config.lease_seconds
