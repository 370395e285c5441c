"""What a master sends of its tables, and when a change counts. Plain values, no sockets."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from pyromq.broker.replicated_table import ChangedKeys, ReplicatedTable
from pyromq.broker.replication.replica_stream import MAX_FRAME_BYTES, TablePiece, TableStored
from pyromq.broker.replication.tables.received_tables import ReceivedTables
from pyromq.broker.replication.tables.sent_tables import SentTables, SentToFollower
from pyromq.errors import BrokerError, NotTheMaster


class Master:
    """Two tables: `topics` must be confirmed, `offsets` follows each 0.2 s."""

    def __init__(self) -> None:
        self.topics = b"[]"
        self.offsets = ChangedKeys()
        self.now = 0.0
        self.holders: frozenset[int] | str = frozenset({2, 3})
        self.adopted: list[tuple[str, bytes]] = []
        self.tables = [
            ReplicatedTable(
                name="topics",
                version=lambda: self.topics,
                encode=lambda _: self.topics,
                adopt=lambda data: self.adopted.append(("topics", data)),
                is_confirmed=True,
            ),
            ReplicatedTable(
                name="offsets",
                version=lambda: self.offsets.version,
                encode=lambda since: b",".join(key.encode() for key in self.offsets.since(int(since or 0))),  # type: ignore[call-overload]
                adopt=lambda data: self.adopted.append(("offsets", data)),
                waits_for_log=True,
                seconds=0.2,
            ),
        ]
        self.sent = SentTables(
            self.tables,
            holders=lambda: self.holders,
            wake=lambda: None,
            now=lambda: self.now,
            timeout_seconds=3.0,
        )

    def due(self, follower: SentToFollower, *, end: int = 0, is_near: bool = True) -> list[TablePiece]:
        return self.sent.due(follower, end, is_near=is_near, now=self.now)


@pytest.fixture
def master() -> Master:
    return Master()


def test_a_follower_gets_all_tables_then_changes_only(master: Master) -> None:
    follower = SentToFollower()
    master.offsets.note("a")
    master.offsets.note("b")
    assert [piece.name for piece in master.due(follower)] == ["topics", "offsets"]
    assert master.due(follower) == []
    master.offsets.note("a")
    assert master.due(follower) == []  # within 0.2 s of the last copy
    master.now = 0.2
    assert [(piece.name, piece.data, piece.stamp) for piece in master.due(follower, end=7)] == [("offsets", b"a", 7)]


def test_a_follower_far_behind_gets_confirmed_tables_only(master: Master) -> None:
    follower = SentToFollower()
    master.offsets.note("a")
    assert [piece.name for piece in master.due(follower, is_near=False)] == ["topics"]
    assert [piece.data for piece in master.due(follower)] == [b"a"]


def test_a_change_counts_when_all_holders_have_it(master: Master) -> None:
    pieces = master.due(SentToFollower())
    kept = master.sent.when_stored()
    master.sent.stored(2, TableStored("topics", pieces[0].version))
    assert not kept.done()
    master.sent.stored(3, TableStored("topics", pieces[0].version))
    assert kept.result(0) is None
    master.topics = b"[1]"
    assert not master.sent.when_stored().done()


def test_a_follower_that_connects_again_has_nothing_until_it_says_so(master: Master) -> None:
    pieces = master.due(SentToFollower())
    for replica in (2, 3):
        master.sent.stored(replica, TableStored("topics", pieces[0].version))
    master.sent.fed(3)
    assert not master.sent.when_stored().done()


def test_a_change_that_is_not_stored_in_time_names_the_replica(master: Master) -> None:
    kept = master.sent.when_stored()
    master.now = 3.0
    master.holders = frozenset({3})
    master.sent.check()
    with pytest.raises(BrokerError, match="not confirmed within 3 s: replica 3 has not stored it") as refused:
        kept.result(0)
    assert refused.value.code == 12


def test_a_master_that_steps_down_fails_what_waits(master: Master) -> None:
    kept = master.sent.when_stored()
    master.sent.step_down(NotTheMaster("10.0.0.2:10911"))
    with pytest.raises(NotTheMaster, match=r"10\.0\.0\.2:10911"):
        kept.result(0)


def test_a_large_table_travels_in_pieces(master: Master) -> None:
    master.topics = bytes(MAX_FRAME_BYTES + 1)
    pieces = [piece for piece in master.due(SentToFollower()) if piece.name == "topics"]
    assert [(len(piece.data), piece.is_last) for piece in pieces] == [(MAX_FRAME_BYTES, False), (1, True)]
    taken = ReceivedTables(master.tables, stored=lambda _: None, failed=lambda _: None)
    for piece in pieces:
        taken.take(piece)
    assert master.adopted == [("topics", master.topics)]


def test_a_table_that_follows_the_log_waits_for_its_place(master: Master) -> None:
    taken = ReceivedTables(master.tables, stored=lambda _: None, failed=lambda _: None)
    taken.take(TablePiece("offsets", 1, 100, True, b"a"))
    taken.log_reached(99)
    assert master.adopted == []
    taken.log_reached(100)
    assert master.adopted == [("offsets", b"a")]
    taken.take(TablePiece("offsets", 2, 200, True, b"b"))
    taken.begin()  # the log was cut, or another replica is the master
    taken.log_reached(300)
    assert master.adopted == [("offsets", b"a")]


def test_tables_that_are_unknown_here_are_acknowledged() -> None:
    stored: list[TableStored] = []
    ReceivedTables([], stored=stored.append, failed=lambda _: None).take(TablePiece("permissions", 3, 0, True, b"{}"))
    assert stored == [TableStored("permissions", 3)]


def test_a_follower_is_saving_until_each_confirmed_table_is_on_disk() -> None:
    saved: Future[None] = Future()
    stored: list[TableStored] = []
    table = ReplicatedTable(
        name="topics", version=lambda: 0, encode=lambda _: b"", adopt=lambda _: saved, is_confirmed=True
    )
    taken = ReceivedTables([table], stored=stored.append, failed=lambda _: None)
    taken.take(TablePiece("topics", 1, 0, True, b"[]"))
    assert taken.is_saving and not stored
    saved.set_result(None)
    assert not taken.is_saving
    assert stored == [TableStored("topics", 1)]
