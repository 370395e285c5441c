"""What one replica does by itself: whom it refuses, and what it never does. Whole sets are in tests/simulation/sets."""

from __future__ import annotations

import msgspec
import pytest
from tests.simulation.sets.model_store import ModelEpochs, ModelLog

from pyromq.broker.replication.record_view import RecordView
from pyromq.broker.replication.replica import Replica
from pyromq.broker.replication.replica_actions import (
    BecomeMaster,
    CloseLink,
    Confirmed,
    CutLog,
    Feed,
    FollowMaster,
    Link,
    Reading,
    ReadRecord,
    SendHello,
    SendReport,
    SendRequest,
    StepDown,
    StopReplica,
    SwapRecord,
)  # fmt: skip
from pyromq.broker.replication.replica_port import ReplicaConfig
from pyromq.broker.replication.replica_stream import Frame, FrameRequest, Hello, RecordMark, Report
from pyromq.broker.replication.set_record import Member, SetRecord, SetSettings
from pyromq.store.epoch_file import EpochStart

SETTINGS = SetSettings(1 << 20, 1, False)
ME, OTHER = Member(1, 11), Member(2, 22)
THEIRS = Link(2, False)
OURS = Link(2, True)
HELLO = Hello(1, "c", "set", 2, 22, 0, False, (), 0, 0, False, SETTINGS)


def replica(log: ModelLog | None = None, *, promised: int = 0, lines: tuple[tuple[int, int], ...] = ()) -> Replica:
    epochs = ModelEpochs()
    epochs.promised, epochs.lines = promised, [EpochStart(*line) for line in lines]
    return Replica(ReplicaConfig("c", "set", ME, SETTINGS, sync_flush=False), log or ModelLog(), epochs, now=0.0)


def log_of(*numbers: int) -> ModelLog:
    log = ModelLog()
    for number in numbers:
        log.append_record(number)
    return log


def read(one: Replica, now: float, record: SetRecord | None, revision: int = 5) -> list[object]:
    [ask] = [action for action in one.tick(now) if isinstance(action, ReadRecord)]
    return list(one.record_read(now, ask.number, Reading(record, revision, {})))


def master(log: ModelLog | None = None, *members: Member) -> Replica:
    """Return the master of epoch 3, which requires itself and these members."""
    one = replica(log, promised=2, lines=((1, 0),))
    actions = read(one, 0.1, SetRecord(3, 1, (ME, *members)))
    assert BecomeMaster(3) in actions
    return one


def kinds(actions: list[object]) -> list[type]:
    return [type(action) for action in actions]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"set_name": "bills"}, "it is of c/bills, this replica of c/set"),
        ({"cluster": "d"}, "it is of d/set"),
        ({"number": 1}, "two replicas have the number 1"),
        ({"settings": SetSettings(1 << 30, 1, False)}, "mappedFileSizeCommitLog is 1048576 here and 1073741824 there"),
    ],
)
def test_a_replica_that_does_not_belong_here_is_refused_by_name(changes, reason):
    hello = msgspec.structs.replace(HELLO, **changes)
    [close] = replica().hello_received(0.1, Link(hello.number, False), hello)
    assert isinstance(close, CloseLink)
    assert reason in close.reason


def test_a_replica_in_sync_takes_up_an_epoch_that_it_has_not_promised():
    one = master(log_of(1, 2))
    assert one.epochs.promised == 3
    assert one.epochs.lines == [EpochStart(1, 0), EpochStart(3, 16)]
    assert one.log.confirmed_end == 16


def test_a_master_never_goes_on_with_an_epoch_of_an_earlier_process():
    one = replica(promised=3, lines=((3, 0),))
    actions = read(one, 0.1, SetRecord(3, 1, (ME,)))
    swaps = [action for action in actions + one.tick(1.2) if isinstance(action, SwapRecord)]
    assert not one.is_master
    assert swaps[0].record.epoch == 4


def test_a_replica_whose_full_disk_takes_no_epoch_leaves_the_election_to_others():
    one = replica(promised=2, lines=((1, 0),))
    one.epochs.is_full = True
    done = []

    def live(begin, end):
        for step in range(begin * 20, end * 20):
            done.extend(one.tick(step / 20))
            if done and isinstance(done[-1], ReadRecord):
                done.extend(one.record_read(step / 20, done[-1].number, Reading(SetRecord(3, 1, (ME, OTHER)), 5, {})))

    live(0, 20)
    assert SwapRecord not in kinds(done)
    one.epochs.is_full = False
    live(20, 30)
    assert BecomeMaster(3) in done


@pytest.mark.parametrize("promised", [3, 2])
def test_a_replica_whose_full_disk_takes_no_epoch_follows_once_it_has_room(promised):
    one = replica(promised=promised, lines=())
    one.connected(0.1, 2)
    one.epochs.is_full = True
    hello = msgspec.structs.replace(HELLO, epoch=3, is_master=True, lines=(EpochStart(3, 0),))
    one.hello_received(0.2, OURS, hello)
    assert one.following is None
    one.epochs.is_full = False
    assert SendHello in kinds(one.disk_works(0.3))
    one.hello_received(0.4, OURS, hello)
    assert one.following == (2, 3)


def test_another_incarnation_of_a_listed_replica_is_not_elected():
    one = replica(promised=3, lines=((3, 0),))
    old = Member(ME.number, 10)
    read(one, 0.1, SetRecord(3, 1, (old, OTHER)))
    assert not any(isinstance(action, SwapRecord) for now in range(1, 20) for action in one.tick(float(now)))


def test_a_record_is_confirmed_once_all_required_replicas_have_reported_it():
    one = master(log_of(1, 2), OTHER)
    assert one.log_grew(0.2) == []
    one.hello_received(0.2, THEIRS, HELLO)
    assert one.request_received(0.2, 2, FrameRequest(3, 0, None)) == [Feed(2, 3, 0)]
    assert one.report_received(0.3, 2, Report(3, 8, 0)) == [Confirmed(8)]
    assert one.report_received(0.3, 2, Report(2, 16, 16)) == [], "a report of another epoch"
    assert one.report_received(0.3, 2, Report(3, 16, 0)) == [Confirmed(16)]


def test_a_report_beyond_the_log_closes_the_link_and_does_not_count():
    one = master(log_of(1, 2), OTHER)
    one.hello_received(0.2, THEIRS, HELLO)
    one.request_received(0.2, 2, FrameRequest(3, 0, None))
    [close] = one.report_received(0.3, 2, Report(3, 1 << 40, 0))
    assert isinstance(close, CloseLink)
    assert one.log.confirmed_end == 0


def test_a_heartbeat_that_was_overtaken_by_a_report_does_not_lower_the_followers_end():
    one = master(log_of(1, 2), OTHER)
    one.connected(0.1, 2)
    one.hello_received(0.1, OURS, msgspec.structs.replace(HELLO, epoch=3))
    one.hello_received(0.1, THEIRS, msgspec.structs.replace(HELLO, epoch=3))
    one.request_received(0.2, 2, FrameRequest(3, 0, None))
    one.report_received(0.3, 2, Report(3, 16, 16))
    one.frame_received(0.4, 2, Frame(3, 0, 0, b""))
    assert one.peers[2].end == 16


def test_a_follower_whose_last_record_differs_is_refused():
    one = master(log_of(1, 2), OTHER)
    one.hello_received(0.2, THEIRS, HELLO)
    [close] = one.request_received(0.2, 2, FrameRequest(3, 16, RecordMark(8, 99, 0)))
    assert isinstance(close, CloseLink)
    assert "differs" in close.reason


def test_a_master_steps_down_for_a_higher_epoch_and_names_its_master():
    one = master(log_of(1))
    one.connected(0.2, 2)
    [step_down] = one.hello_received(0.2, OURS, msgspec.structs.replace(HELLO, epoch=4, is_master=True))
    assert isinstance(step_down, StepDown)
    assert step_down.master == 2
    assert one.tick(0.3) == [], "the object is over"


def following(log: ModelLog) -> Replica:
    one = replica(log, promised=1, lines=((1, 0),))
    one.connected(0.1, 2)
    hello = msgspec.structs.replace(HELLO, epoch=3, is_master=True, lines=((1, 0), (3, log.end)), end=log.end)
    actions = one.hello_received(0.1, OURS, msgspec.convert(msgspec.to_builtins(hello), Hello))
    assert {SendRequest, FollowMaster, SendReport} <= set(kinds(actions))
    assert one.epochs.promised == 3, "the promise is on disk before anything is reported"
    return one


def test_a_follower_confirms_what_the_master_says_and_never_more_than_it_has():
    one = following(log_of(1))
    data = (2).to_bytes(8, "big")
    actions = one.frame_received(0.2, 2, Frame(3, 8, 8, data))
    assert actions == [Confirmed(8), SendReport(2, Report(3, 16, 0))]
    assert one.frame_received(0.3, 2, Frame(3, 16, 1 << 30, b"")) == [Confirmed(16)]


def test_a_frame_of_a_lower_epoch_is_not_taken():
    one = following(log_of(1))
    assert one.frame_received(0.2, 2, Frame(2, 8, 8, b"12345678")) == []
    assert one.log.written_end == 8


def test_a_frame_that_leaves_a_gap_closes_the_link():
    one = following(log_of(1))
    [close] = one.frame_received(0.2, 2, Frame(3, 16, 8, b"12345678"))
    assert isinstance(close, CloseLink)
    assert one.log.written_end == 8


def test_an_unconfirmed_tail_is_cut_where_the_epochs_part():
    one = replica(log_of(1, 2, 3), promised=2, lines=((1, 0), (2, 8)))
    one.connected(0.1, 2)
    hello = msgspec.structs.replace(HELLO, epoch=3, is_master=True, lines=(EpochStart(1, 0), EpochStart(3, 16)), end=24)
    assert one.hello_received(0.1, OURS, hello)[-1] == CutLog(8, 3, 0)


def test_a_confirmed_tail_is_not_cut_unless_the_record_notes_the_loss():
    one = replica(log_of(1, 2, 3), promised=2, lines=((1, 0), (2, 8)))
    one.log.confirm(24)
    one.connected(0.1, 2)
    hello = msgspec.structs.replace(HELLO, epoch=3, is_master=True, lines=(EpochStart(1, 0), EpochStart(3, 16)), end=24)
    [ask] = [action for action in one.hello_received(0.1, OURS, hello) if isinstance(action, ReadRecord)]
    hellos = one.record_read(0.2, ask.number, Reading(SetRecord(3, 2, (OTHER,)), 9, {}))
    assert SendHello in kinds(hellos)
    [stop] = one.hello_received(0.3, OURS, hello)
    assert isinstance(stop, StopReplica)
    assert "up to 24 all was confirmed" in stop.reason


def test_a_log_that_is_not_of_the_set_is_neither_overwritten_nor_added_to():
    one = replica(log_of(1, 2))
    one.connected(0.1, 2)
    hello = msgspec.structs.replace(HELLO, epoch=3, is_master=True, lines=(EpochStart(1, 0),), end=800)
    stop = one.hello_received(0.1, OURS, hello)[-1]
    assert isinstance(stop, StopReplica)
    assert "a log of 16 bytes that is not of the set set" in stop.reason


def test_reading_the_same_revision_does_not_close_a_swap():
    view = RecordView()
    alone, both = SetRecord(1, 1, (ME,)), SetRecord(1, 1, (ME, OTHER))
    first = view.read_now(0.0)
    view.read_answered(first.number, Reading(both, 5, {}))
    swap = view.swap(alone)
    view.swap_failed(swap.number)
    again = view.read_now(1.0)
    view.read_answered(again.number, Reading(both, 5, {}))
    assert view.has_open_swaps
    assert view.possible_members() == {ME, OTHER}
    second = view.swap(both)
    view.swap_done(second.number, 6)
    assert not view.has_open_swaps


def swaps(actions: list[object]) -> list[SwapRecord]:
    return [action for action in actions if isinstance(action, SwapRecord)]


def test_an_accepted_loss_elects_at_once_a_replica_that_is_not_in_sync():
    one = replica(promised=3, lines=((3, 0),))
    read(one, 0.1, SetRecord(3, 2, (OTHER,)))
    [swap] = swaps(one.accept_loss(0.2, "a fire"))
    assert (swap.record.epoch, swap.record.master, swap.record.losses[-1].reason) == (4, 1, "a fire")


def test_an_accepted_loss_is_not_made_good_once_another_replica_was_elected():
    one = replica(promised=3, lines=((3, 0),))
    read(one, 0.1, SetRecord(3, 2, (OTHER,)))
    [swap] = swaps(one.accept_loss(0.2, "a fire"))
    [ask] = one.swap_failed(0.3, swap.number)
    actions = list(one.record_read(0.3, ask.number, Reading(SetRecord(4, 3, (Member(3, 33),)), 6, {})))
    actions += [action for tick in range(7, 90) for action in one.tick(tick / 10)]
    assert swaps(actions) == []


def test_an_accepted_loss_is_forgotten_if_the_registry_does_not_answer_in_time():
    one = replica(promised=3, lines=((3, 0),))
    read(one, 0.1, SetRecord(3, 2, (OTHER,)))
    [swap] = swaps(one.accept_loss(0.2, "a fire"))
    [ask] = one.swap_failed(0.7, swap.number)
    late = list(one.record_read(10.3, ask.number, Reading(SetRecord(3, 2, (OTHER,)), 5, {})))
    assert swaps(late + [action for tick in range(104, 200) for action in one.tick(tick / 10)]) == []
