"""The other replicas of a set, as one replica sees them.

For each other replica: whether it is connected, its last hello, and when its last message came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyromq.broker.replication.replica_stream import Hello
from pyromq.broker.replication.set_record import Member, SetRecord
from pyromq.store.epoch_file import EpochStart

SILENT_SECONDS = 1.0  # a link without a message for this time, five heartbeats, is closed
DEATH_SECONDS = 0.05  # time between two refused connections that prove the end of a process
DIAL_SECONDS = 0.5  # time between two attempts to connect
NEVER = float("-inf")


@dataclass(slots=True)
class Peer:
    """One other replica. Times are those of this replica's clock."""

    number: int
    hello: Hello | None = None  # the last hello, on either link
    end: int = 0  # log end in the peer's last hello or heartbeat
    has_our_link: bool = False
    # Whether a message has come on the link that this replica dialled. A stopped process accepts links, and is silent.
    has_answered: bool = False
    has_their_link: bool = False
    is_dialling: bool = False
    may_dial_at: float = NEVER
    connected_at: float = NEVER  # time at which the link that this replica dialled was opened
    heard_at: float = NEVER  # time of the last message on the link that this replica dialled
    heard_as_master_at: float = NEVER
    # Time of the first hello in which the peer's present process was not master; NEVER while it is master.
    follows_since: float = NEVER
    refused_at: list[float] = field(default_factory=list)  # times of refused connections since it was last connected

    @property
    def is_connected(self) -> bool:
        return self.hello is not None and (self.has_our_link or self.has_their_link)

    @property
    def member(self) -> Member | None:
        """Number and incarnation from the hello of a connected replica; None while it is not connected."""
        return Member(self.number, self.hello.incarnation) if self.hello and self.is_connected else None

    @property
    def standing(self) -> tuple[int, int]:
        """The last epoch and the end of the peer's log. The replica with the highest pair is elected first."""
        return standing(self.hello.lines if self.hello else (), self.end)

    def is_passive(self, epoch: int) -> bool:
        """Whether the peer is connected and, by its last hello, not the master of this epoch or a later one."""
        return self.has_our_link and self.hello is not None and not (self.hello.is_master and self.hello.epoch >= epoch)

    def is_dead(self) -> bool:
        """Whether the peer's process has certainly ended: both of its ports refused two connections in succession."""
        refused = self.refused_at
        return not self.is_connected and len(refused) > 1 and refused[-1] - refused[0] >= DEATH_SECONDS


class Peers:
    """The other replicas of the set, by number."""

    def __init__(self, own_number: int) -> None:
        self._own_number = own_number
        self._peers: dict[int, Peer] = {}

    def __getitem__(self, number: int) -> Peer:
        """Return a replica's entry. The first call makes the entry."""
        peer = self._peers.get(number)
        if peer is None:
            assert number != self._own_number, "a replica is not a peer of itself"
            peer = self._peers[number] = Peer(number)
        return peer

    def know(self, numbers: set[int]) -> None:
        """Make an entry for each of these replicas except this one."""
        for number in numbers - {self._own_number}:
            self[number]

    def all(self) -> list[Peer]:
        return list(self._peers.values())

    def in_sync(self, record: SetRecord) -> list[Peer]:
        """Return the replicas that answer and that the record lists as in sync, with the same incarnation."""
        return [peer for peer in self._peers.values() if peer.has_answered and peer.member in record.in_sync]

    def shift(self, seconds: float) -> None:
        """Move all times of the peers by the length of a pause of this process, which received nothing in the pause."""
        for peer in self._peers.values():
            peer.heard_at += seconds
            peer.heard_as_master_at += seconds
            peer.follows_since += seconds
            peer.refused_at.clear()


def standing(lines: Sequence[EpochStart], end: int) -> tuple[int, int]:
    """Return the last epoch that a log of this end has reached, and the end."""
    return (max((line.epoch for line in lines if line.start <= end), default=0), end)
