"""The other replicas of a set, as one replica sees them: their links, their last hello, and when they were heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyromq.broker.replication.replica_stream import Hello
from pyromq.broker.replication.set_record import Member, SetRecord
from pyromq.store.epoch_file import EpochStart

SILENT_SECONDS = 1.0  # five heartbeats: a link without any of them is cut
DEATH_SECONDS = 0.05  # between two refusals that prove the death of a process
DIAL_SECONDS = 0.5  # between attempts to connect
NEVER = float("-inf")


@dataclass(slots=True)
class Peer:
    """One other replica. Times are those of this replica's clock."""

    number: int
    hello: Hello | None = None  # the last one, of either link
    end: int = 0  # the end that its last hello or heartbeat told
    has_our_link: bool = False
    has_their_link: bool = False
    is_dialling: bool = False
    may_dial_at: float = NEVER
    connected_at: float = NEVER  # our link
    heard_at: float = NEVER  # on the link that we dialled
    heard_as_master_at: float = NEVER
    follows_since: float = NEVER  # when it connected as it is now without being a master
    refused_at: list[float] = field(default_factory=list)  # since it was last connected

    @property
    def is_connected(self) -> bool:
        return self.hello is not None and (self.has_our_link or self.has_their_link)

    @property
    def member(self) -> Member | None:
        """The number and incarnation by which a connected replica introduced itself."""
        return Member(self.number, self.hello.incarnation) if self.hello and self.is_connected else None

    @property
    def standing(self) -> tuple[int, int]:
        """The last epoch and the end of its log: who is longer is elected first."""
        return standing(self.hello.lines if self.hello else (), self.end)

    def is_passive(self, epoch: int) -> bool:
        """Whether it is heard, and says that it does not act as master of this epoch."""
        return self.has_our_link and self.hello is not None and not (self.hello.is_master and self.hello.epoch >= epoch)

    def is_dead(self) -> bool:
        """Whether its process is proven to be gone: both of its ports refused twice."""
        refused = self.refused_at
        return not self.is_connected and len(refused) > 1 and refused[-1] - refused[0] >= DEATH_SECONDS


class Peers:
    """The table of the other replicas."""

    def __init__(self, own_number: int) -> None:
        self._own_number = own_number
        self._peers: dict[int, Peer] = {}

    def __getitem__(self, number: int) -> Peer:
        """Return a replica's entry, which is made at the first call."""
        peer = self._peers.get(number)
        if peer is None:
            assert number != self._own_number, "a replica is no peer of itself"
            peer = self._peers[number] = Peer(number)
        return peer

    def know(self, numbers: set[int]) -> None:
        """Make entries of registered replicas."""
        for number in numbers - {self._own_number}:
            self[number]

    def all(self) -> list[Peer]:
        return list(self._peers.values())

    def in_sync(self, record: SetRecord) -> list[Peer]:
        """Return the connected replicas that are in the record's list with their incarnation."""
        return [peer for peer in self._peers.values() if peer.member in record.in_sync]

    def shift(self, seconds: float) -> None:
        """Forgive the others a pause of this process: they could not be heard meanwhile."""
        for peer in self._peers.values():
            peer.heard_at += seconds
            peer.heard_as_master_at += seconds
            peer.follows_since += seconds
            peer.refused_at.clear()


def standing(lines: Sequence[EpochStart], end: int) -> tuple[int, int]:
    """Return the last epoch that a log of this end has reached, and the end."""
    return (max((line.epoch for line in lines if line.start <= end), default=0), end)
