"""Six strategies that assign a topic's queues to the members of a group, with exactly RocketMQ's results.

Every member computes its own queues from the same sorted queues and members; members exchange no messages. Members in
Java and Go run other code, so the results here must equal those of RocketMQ's Java classes.
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
    """Return the member's consecutive queues; the first members get one more if the queues do not divide evenly.

    Source: AllocateMessageQueueAveragely.
    """
    if not _is_member(group, member, queues, members):
        return []
    index, more = members.index(member), len(queues) % len(members)
    size = len(queues) // len(members) + (index < more)
    start = index * size + (0 if index < more else more)
    return list(queues[start : start + size])


def circular(group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Return every n-th queue, n being the number of members. Source: AllocateMessageQueueAveragelyByCircle."""
    if not _is_member(group, member, queues, members):
        return []
    return list(queues[members.index(member) :: len(members)])


@dataclass(frozen=True, slots=True)
class Configured:
    """Assigns the given `queues`, whatever members the group has. Source: AllocateMessageQueueByConfig."""

    queues: Sequence[MessageQueue]

    def __call__(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self.queues)


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Divides the queues of brokers named `room@name`, with a room in `rooms`, evenly among all members.

    Other queues are not assigned. If the queues do not divide evenly, the last ones go to the first members, one each.
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
    """Assigns queues to members of the same machine room.

    The queues of a room without members are divided among all members. `room_of_queue` and `room_of_member` return the
    room of a queue's broker and of a member's client id. If they return an empty room, `UsageError` is raised. `inner`
    is the strategy within a room. Source: AllocateMachineRoomNearby.
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
    """Return the first four bytes of a string's MD5 as a big-endian number. Source: ConsistentHashRouter.MD5Hash."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Assigns a queue to the next member on a ring of hashes, so that few queues move when a member joins or leaves.

    Each member has `virtual_nodes` places on the ring; with 0 no queue is assigned, as in RocketMQ. Source:
    AllocateMessageQueueConsistentHash.
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
        """Return the member at each hash; of two members with the same hash the later one stays.

        A member listed twice has twice the places.
        """
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
    """Return whether `member` is one of `members`; False is logged. Raises `UsageError` if an argument is empty.

    Source: AbstractAllocateMessageQueueStrategy.check.
    """
    for value, name in ((member, "member"), (queues, "queues"), (members, "members")):
        if not value:
            raise UsageError(f"queues of group {group!r} cannot be assigned: {name} is empty")
    if member in members:
        return True
    logger.info("group %s: %s is not among the members and gets no queue; the members are: %s", group, member, members)
    return False


def _room(broker_name: str) -> str | None:
    """Return the room of a broker named `room@name`; None for other names. As in Java, empty end parts are ignored."""
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
