"""The accidents that can befall a set, one by one: what must be seen, and within which time."""

from __future__ import annotations

import msgspec
import pytest

from pyromq.broker.replication.set_record import SetSettings

from .machine import Process
from .set_life import SetLife


class Scene(SetLife):
    """A set in a network without delays of note, whose accidents the test chooses."""

    def __init__(
        self, count: int = 3, *, min_in_sync: int = 1, sync_flush: bool = False, unclean: bool = False
    ) -> None:
        super().__init__(seed=7)
        self._is_peace = True  # the registry answers in time
        self.network.delay = lambda: 0.001
        self.sync_flush = sync_flush
        self.settings = SetSettings(1 << 20, min_in_sync, unclean)
        self.machines = {number: self.machine_class(self, number) for number in range(1, count + 1)}
        for machine in self.machines.values():
            machine.start()
        self.wait(4.0)
        assert self.in_sync() == set(self.machines)
        self.elections = 0

    def wait(self, seconds: float) -> None:
        self.time.run_until(self.time.now + seconds)

    def until_elected(self, limit: float) -> float:
        """Return how long the next election takes."""
        begin, before = self.time.now, self.elections
        while self.elections == before:
            assert self.time.now - begin < limit, "\n".join(self.story)
            self.wait(0.01)
        return self.time.now - begin

    def in_sync(self) -> set[int]:
        assert self.registry.record is not None
        return {member.number for member in self.registry.record.in_sync}

    def master(self) -> Process:
        return max(self._masters(), key=lambda process: process.replica.epoch)

    def process(self, number: int) -> Process:
        process = self.machines[number].process
        assert process is not None
        return process

    def others(self) -> list[int]:
        return [number for number in self.machines if number != self.master().machine.number]

    def confirms_all(self, seconds: float = 1.0) -> bool:
        """Whether what the master stores now is confirmed."""
        before = len(self.truth)
        stored = self.master().log.end
        self.wait(seconds)
        return len(self.truth) > before and len(self.truth) >= stored


def test_a_killed_master_is_replaced_without_waiting_for_its_lease():
    set_ = Scene()
    set_.master().machine.end()
    assert set_.until_elected(1.0) < 0.3
    assert set_.confirms_all(2.0)


@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_a_killed_follower_leaves_at_once_unless_sends_would_be_refused(min_in_sync):
    set_ = Scene(2 + (min_in_sync == 1), min_in_sync=min_in_sync)
    set_.machines[set_.others()[0]].end()
    set_.wait(0.4)
    assert len(set_.in_sync()) == 2, "one of three has left; of two, the other is waited for"
    assert set_.confirms_all(0.3) == (min_in_sync == 1)


def test_a_silent_master_is_replaced_when_its_lease_is_gone():
    set_ = Scene()
    old = set_.master()
    old.machine.paused_until = set_.time.now + 20
    assert 2.0 < set_.until_elected(10.0) < 4.5
    assert old.machine.number not in set_.in_sync(), "no send waits for the silent replica"
    set_.wait(0.1)
    assert set_.confirms_all(0.3)
    confirmed = len(set_.truth)
    set_.wait(18.0)
    assert old.replica.is_over, "the old master wakes and steps down"
    assert set_.in_sync() == {1, 2, 3}
    assert len(set_.truth) > confirmed


def test_a_pause_shorter_than_the_lease_changes_nothing():
    set_ = Scene()
    revision = set_.registry.key_revision
    set_.master().machine.paused_until = set_.time.now + 1.5
    set_.wait(4.0)
    assert set_.elections == 0
    assert set_.registry.key_revision == revision
    assert set_.confirms_all()


def test_a_pause_of_a_follower_shorter_than_its_lag_changes_nothing():
    set_ = Scene()
    set_.machines[set_.others()[0]].paused_until = set_.time.now + 2.5
    set_.wait(4.0)
    assert set_.in_sync() == {1, 2, 3}


def test_a_master_that_is_cut_from_its_follower_goes_on_alone():
    set_ = Scene(2)
    set_.network.cuts.update({(1, 2), (2, 1)})
    set_.wait(4.0)
    assert set_.elections == 0
    assert set_.in_sync() == {set_.master().machine.number}
    assert set_.confirms_all()
    set_.heal(set_.machines[1])
    set_.wait(15.0)
    assert set_.in_sync() == {1, 2}


def test_a_registry_that_is_away_for_ten_minutes_is_no_outage():
    set_ = Scene(min_in_sync=2)
    set_.registry.is_away = True
    for _ in range(10):
        set_.wait(60.0)
        assert set_.confirms_all()
    assert set_.elections == 0
    assert set_.master().serve.sends_refused is None


def test_a_replica_that_falls_out_while_the_registry_is_away_holds_up_confirmations():
    set_ = Scene()
    set_.registry.is_away = True
    set_.wait(10.0)
    set_.machines[set_.others()[0]].end()
    set_.wait(10.0)
    assert not set_.confirms_all()
    set_.registry.is_away = False
    set_.wait(6.0)
    assert set_.confirms_all()


def test_a_master_that_is_cut_from_the_registry_only_stays_master():
    set_ = Scene()
    set_.unreachable.add(set_.master().machine.number)
    set_.wait(30.0)
    assert set_.elections == 0
    assert set_.confirms_all()


def test_a_master_that_is_cut_from_all_refuses_sends_and_is_replaced():
    set_ = Scene()
    old = set_.master()
    set_.cut_off(old.machine)
    set_.unreachable.add(old.machine.number)
    assert set_.until_elected(10.0) < 5.0
    set_.wait(4.0)
    assert old.replica.is_master, "it cannot know better"
    assert "no sign of the registry" in (old.serve.sends_refused or "")
    assert "no sign of the registry" in (old.serve.master_refused or "")
    set_.heal(old.machine)
    set_.wait(15.0)
    assert set_.in_sync() == {1, 2, 3}


@pytest.mark.parametrize("is_outward", [True, False])
def test_a_one_way_cut_of_the_master_ends_with_a_set_that_confirms(is_outward):
    set_ = Scene()
    number = set_.master().machine.number
    for other in set_.others():
        set_.network.cuts.add((number, other) if is_outward else (other, number))
    set_.wait(20.0)
    assert set_.confirms_all()


def test_power_lost_and_back_at_once_is_another_incarnation_that_joins_anew():
    set_ = Scene()
    number = set_.others()[0]
    machine = set_.machines[number]
    before = machine.member
    machine.lose_power()
    machine.start()
    set_.master().machine.end()
    set_.until_elected(1.0)
    assert set_.master().machine.number != number
    assert before not in set_.registry.record.in_sync or set_.master().machine.member != before
    set_.wait(5.0)
    assert machine.member in set_.registry.record.in_sync


def test_power_lost_with_synchronous_flush_keeps_the_incarnation():
    set_ = Scene(sync_flush=True)
    for machine in set_.machines.values():
        machine.lose_power()
    for machine in set_.machines.values():
        machine.start_after(0.2)
    set_.until_elected(5.0)
    set_.wait(8.0)
    assert set_.in_sync() == {1, 2, 3}
    assert set_.losses == 0


def test_after_a_power_cut_of_all_the_longest_log_is_elected_and_the_loss_noted():
    set_ = Scene()
    for machine in set_.machines.values():
        machine.lose_power()
    longest = max(set_.machines.values(), key=lambda machine: machine.log.end)
    for machine in set_.machines.values():
        machine.start_after(0.2)
    set_.until_elected(6.0)
    assert set_.master().log.end >= longest.log.end
    assert set_.registry.record.losses[-1].reason.startswith("all replicas that were in sync returned")
    set_.wait(10.0)
    assert set_.in_sync() == {1, 2, 3}


def test_a_lost_folder_is_a_learner_that_is_not_elected():
    set_ = Scene(2)
    number = set_.others()[0]
    set_.network.slowness = 0.0
    set_.machines[number].lose_folder()
    set_.wait(0.2)
    set_.master().machine.end(silent=True)
    set_.machines[number].start()
    set_.wait(20.0)
    assert set_.elections == 0
    assert "no replica that was in sync is left" in (set_.process(number).trouble or "")


def test_nobody_in_sync_is_left_until_an_operator_accepts_the_loss():
    set_ = Scene(2)
    learner, master = set_.others()[0], set_.master().machine
    set_.machines[learner].end()
    set_.wait(4.0)
    assert set_.in_sync() == {master.number}
    master.lose_folder()
    set_.machines[learner].start()
    set_.wait(10.0)
    trouble = set_.process(learner).trouble or ""
    assert set_.elections == 0
    assert f"no replica that was in sync is left (replica {master.number})" in trouble
    assert str(set_.machines[learner].log.end) in trouble
    set_.process(learner).event("accept_loss", "asked by ada")
    set_.wait(2.0)
    assert set_.master().machine.number == learner
    assert set_.registry.record.losses[-1].reason == "asked by ada"
    assert set_.process(learner).trouble is None


def test_an_unclean_election_is_allowed_by_the_setting():
    set_ = Scene(2, unclean=True)
    learner, master = set_.others()[0], set_.master().machine
    set_.machines[learner].end()
    set_.wait(4.0)
    master.lose_folder()
    set_.machines[learner].start()
    set_.until_elected(15.0)
    assert set_.registry.record.losses[-1].reason == "enableElectUncleanMaster is set"


def test_with_unclean_elections_the_fence_has_no_exception():
    set_ = Scene(unclean=True)
    set_.registry.is_away = True
    set_.wait(4.0)
    assert "no sign of the registry" in (set_.master().serve.sends_refused or "")


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_registry_that_went_back_elects_nobody(is_emptied):
    set_ = Scene()
    record = set_.registry.record
    set_.kill(set_.master().machine)
    set_.until_elected(1.0)
    set_.wait(6.0)
    set_.registry.record = None if is_emptied else record
    set_.registry.key_revision = 0 if is_emptied else 11
    set_.elections = 0
    for machine in set_.machines.values():
        machine.end()
        machine.start_after(0.1)
    set_.wait(10.0)
    assert set_.elections == 0
    words = "no record of the set" if is_emptied else "is of epoch 1, this replica has promised epoch 2"
    assert all(words in (set_.process(number).trouble or "") for number in set_.machines)
    set_.registry.record = None
    set_.registry.key_revision = 0
    set_.process(1).event("accept_loss", "the registry was lost")
    set_.wait(8.0)
    assert set_.registry.record.epoch == 3
    assert set_.in_sync() == {1, 2, 3}


def test_a_running_set_goes_on_while_its_registry_is_emptied():
    set_ = Scene()
    set_.registry.record = None
    set_.registry.key_revision = 0
    set_.wait(20.0)
    assert set_.elections == 0
    assert set_.confirms_all()
    assert "no replica joins or leaves the set" in (set_.master().trouble or "")
    number = set_.master().machine.number
    set_.process(number).event("accept_loss", "the registry was lost")
    set_.wait(8.0)
    assert (set_.registry.record.epoch, set_.registry.record.master) == (2, number)
    assert set_.in_sync() == {1, 2, 3}
    assert set_.confirms_all()


def test_a_master_cannot_hand_over_to_itself():
    set_ = Scene()
    set_.hand_over(set_.master().machine)
    assert "is the master already" in set_.master().handed_over


def test_a_planned_failover_takes_no_second():
    set_ = Scene()
    target = set_.others()[0]
    set_.hand_over(set_.machines[target])
    assert set_.until_elected(1.0) < 0.5
    assert set_.master().machine.number == target
    set_.wait(3.0)
    assert set_.in_sync() == {1, 2, 3}


def test_a_planned_failover_to_a_replica_that_is_gone_is_refused():
    set_ = Scene()
    target = set_.others()[0]
    set_.machines[target].end()
    set_.wait(4.0)
    set_.hand_over(set_.machines[target])
    set_.wait(1.0)
    assert "is not in sync" in set_.master().handed_over
    assert set_.confirms_all()


def test_a_planned_failover_to_a_replica_that_does_not_follow_ends_after_a_second():
    set_ = Scene()
    target = set_.others()[0]
    set_.machines[target].paused_until = set_.time.now + 2.0
    set_.wait(0.2)
    set_.hand_over(set_.machines[target])
    assert "hands over" in (set_.master().serve.sends_refused or "")
    set_.wait(1.5)
    assert "did not reach the log's end" in set_.master().handed_over
    set_.wait(2.0)
    assert set_.elections == 0
    assert set_.confirms_all()


def test_a_follower_that_stops_in_order_leaves_the_list_first():
    set_ = Scene()
    number = set_.others()[0]
    left = []
    set_.process(number).leave = lambda action: left.append(set_.in_sync())
    set_.process(number).event("leave")
    set_.wait(1.5)
    assert number not in left[0]


def test_a_master_that_stops_in_order_hands_over_first():
    set_ = Scene()
    set_.process(set_.master().machine.number).event("leave")
    assert set_.until_elected(1.0) < 0.5


def test_a_full_disk_of_a_follower_makes_it_leave_and_of_the_master_hand_over():
    set_ = Scene()
    number = set_.others()[0]
    set_.machines[number].log.is_full = True
    set_.wait(1.0)
    assert number not in set_.in_sync()
    assert set_.confirms_all()
    set_.machines[number].log.is_full = False
    set_.wait(15.0)
    assert number in set_.in_sync()
    old = set_.master().machine
    set_.fill_disk(old)
    assert set_.until_elected(1.0) < 0.5
    assert set_.master().machine is not old


@pytest.mark.parametrize("index", [0, 1])
def test_a_follower_whose_full_disk_takes_no_epoch_keeps_no_other_from_being_elected(index):
    set_ = Scene()
    full, other = set_.others()[index], set_.others()[1 - index]
    set_.machines[full].epochs.is_full = True
    set_.master().machine.end()
    assert set_.until_elected(5.0) < 3.0
    assert set_.master().machine is set_.machines[other]


def test_below_the_minimum_sends_are_refused_before_they_are_stored():
    set_ = Scene(2, min_in_sync=2)
    set_.machines[set_.others()[0]].end()
    set_.wait(4.0)
    assert set_.master().serve.sends_refused == "in sync: 1, asked for: 2"
    confirmed = len(set_.truth)
    set_.wait(2.0)
    assert len(set_.truth) == confirmed


def test_a_slow_follower_is_removed_and_comes_back_after_ten_seconds_without_lag():
    set_ = Scene()
    number = set_.others()[0]
    master = set_.master().machine.number
    set_.network.cuts.add((number, master))  # its reports do not arrive
    set_.wait(5.0)
    assert number not in set_.in_sync()
    begin = set_.time.now
    set_.network.heal()
    while number not in set_.in_sync():
        assert set_.time.now - begin < 20
        set_.wait(0.1)
    assert set_.time.now - begin > 8.0


def test_the_preferred_replica_is_elected_first():
    for preferred in (1, 2, 3):
        set_ = Scene()
        if set_.master().machine.number == preferred:
            continue
        record = set_.registry.record
        assert set_.registry.swap(set_.registry.key_revision, msgspec.structs.replace(record, preferred=preferred))
        set_.wait(6.0)
        set_.master().machine.end()
        set_.until_elected(2.0)
        assert set_.master().machine.number == preferred
