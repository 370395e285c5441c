"""The lag of a replica in seconds."""

from __future__ import annotations

from types import SimpleNamespace

from pyromq.broker.replication.operating.set_watch import SetWatch
from pyromq.broker.replication.peers import Peers
from pyromq.broker.replication.record_view import RecordView
from pyromq.broker.replication.set_record import Member, SetRecord
from pyromq.testing import FakeClock


class Watched:
    """A replica as the watch sees it: its log's end, its peers and its record."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(end=0)
        self.peers = Peers(1)
        self.view = RecordView()


def test_a_lag_is_the_time_since_the_first_missing_byte_was_stored() -> None:
    watch, replica = SetWatch(FakeClock()), Watched()
    for now, end in ((0.0, 0), (1.0, 100), (2.0, 200), (3.0, 200)):
        replica.log.end = end
        watch.update(now, replica)  # type: ignore[arg-type]
    assert [watch.lag_seconds(4.0, end) for end in (0, 50, 100, 150, 200)] == [3.0, 3.0, 2.0, 2.0, 0.0]


def test_ends_behind_a_cut_are_forgotten() -> None:
    watch, replica = SetWatch(FakeClock()), Watched()
    for now, end in ((0.0, 100), (1.0, 200), (2.0, 150)):
        replica.log.end = end
        watch.update(now, replica)  # type: ignore[arg-type]
    assert (watch.lag_seconds(3.0, 100), watch.lag_seconds(3.0, 150)) == (1.0, 0.0)


def test_the_time_of_entering_and_leaving_the_list_is_kept() -> None:
    clock = FakeClock()
    watch, replica = SetWatch(clock), Watched()
    replica.view.record = SetRecord(1, 1, (Member(1, 7), Member(2, 8)))
    watch.update(0.0, replica)  # type: ignore[arg-type]
    assert watch.since_ms(2) is None  # in the list before this process knew it
    replica.view.record = SetRecord(1, 1, (Member(1, 7),))
    watch.update(1.0, replica)  # type: ignore[arg-type]
    assert (watch.since_ms(1), watch.since_ms(2)) == (None, clock.now_ms())
