"""Six strategies that assign a topic's queues to the members of a group, with exactly RocketMQ's results.

Every member computes its own share from the same sorted queues and members, without messages to the others. Members in
Java and Go use their own code, so each result here must equal theirs.
Source: RocketMQ 4.9.8, org.apache.rocketmq.client.consumer.rebalance and ConsistentHashRouter.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyromq.client.client_config import Strategy
from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue

logger = logger_of(__name__)

T = TypeVar("T")


def averaging(group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Assign consecutive queues, one more to the first members. Source: AllocateMessageQueueAveragely."""
    if not _is_member(group, member, queues, members):
        return []
    index, more = members.index(member), len(queues) % len(members)
    size = len(queues) // len(members) + (index < more)
    start = index * size + (0 if index < more else more)
    return list(queues[start : start + size])


def circular(group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Assign queues one by one to the members in turn. Source: AllocateMessageQueueAveragelyByCircle."""
    if not _is_member(group, member, queues, members):
        return []
    return list(queues[members.index(member) :: len(members)])


@dataclass(frozen=True, slots=True)
class Configured:
    """Assigns the queues given here, without a look at members. Source: AllocateMessageQueueByConfig."""

    queues: Sequence[MessageQueue]

    def __call__(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self.queues)


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Averages the queues of brokers named `room@name` with a listed room; other queues are not assigned.

    The queues of the remainder, at the end of the list, go to the first members.
    Source: AllocateMessageQueueByMachineRoom.
    """

    rooms: frozenset[str]

    def __call__(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_member(group, member, queues, members):
            return []
        own = [queue for queue in queues if _room(queue.broker_name) in self.rooms]
        index, size = members.index(member), len(own) // len(members)
        left_over = own[size * len(members) :]
        return own[index * size : (index + 1) * size] + left_over[index : index + 1]


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Assigns queues to members of their own machine room; the queues of a room without members go to all.

    The two functions return the room of a queue's broker and of a member's client id; an empty result is a
    `UsageError`. `inner` is the strategy within a room. Source: AllocateMachineRoomNearby.
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_member: Callable[[str], str]
    inner: Strategy = averaging

    def __call__(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_member(group, member, queues, members):
            return []
        queues_by_room = _by_room(queues, self.room_of_queue)
        members_by_room = _by_room(members, self.room_of_member)
        room = self.room_of_member(member)
        share: list[MessageQueue] = []
        if own := queues_by_room.pop(room, []):
            share += self.inner(group, member, own, members_by_room[room])
        for other in sorted(queues_by_room.keys() - members_by_room.keys()):
            share += self.inner(group, member, queues_by_room[other], members)
        return share


def md5_hash(text: str) -> int:
    """Return the first four bytes of a text's MD5. Source: ConsistentHashRouter.MD5Hash."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Assigns a queue to the next member on a ring of hashes: few queues move when a member joins or leaves.

    Each member is on the ring `virtual_nodes` times; with 0 no queue is assigned, as by RocketMQ.
    Source: AllocateMessageQueueConsistentHash.
    """

    virtual_nodes: int = 10
    hash: Callable[[str], int] = md5_hash

    def __post_init__(self) -> None:
        if self.virtual_nodes < 0:
            raise UsageError(f"virtual_nodes={self.virtual_nodes} is below 0; 10 is usual")

    def __call__(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if not _is_member(group, member, queues, members):
            return []
        ring = self._ring(members)
        places = sorted(ring)
        return [queue for queue in queues if places and ring[self._place(queue, places)] == member]

    def _ring(self, members: Sequence[str]) -> dict[int, str]:
        """Return members by hash; of two with one hash the later stays. A member listed twice has twice the nodes."""
        ring: dict[int, str] = {}
        for member in members:
            first = sum(owner == member for owner in ring.values()) if members.count(member) > 1 else 0
            for number in range(first, first + self.virtual_nodes):
                ring[self.hash(f"{member}-{number}")] = member
        return ring

    def _place(self, queue: MessageQueue, places: list[int]) -> int:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return places[bisect_left(places, self.hash(text)) % len(places)]


def _is_member(group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> bool:
    """Return whether there is a share to compute. Source: AbstractAllocateMessageQueueStrategy.check."""
    for value, name in ((member, "member"), (queues, "queues"), (members, "members")):
        if not value:
            raise UsageError(f"sharing the queues of group {group!r}: {name} is empty")
    if member in members:
        return True
    logger.info("group %s: %s is not among the members and gets no queue; these are: %s", group, member, members)
    return False


def _room(broker_name: str) -> str | None:
    """Return the room of `room@name`; None for other names. Java's split drops empty parts at the end."""
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def _by_room(items: Sequence[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise UsageError(f"{item} has no machine room; the function of rooms must return one")
        rooms.setdefault(room, []).append(item)
    return rooms
