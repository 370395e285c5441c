"""A consumer group's members, subscriptions and locked queues, joined from the responses of brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyromq.filter.subscription_differences import Differences, differences
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import Connection, ConsumerConnection, LockHolder


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member. `subscriptions` are expressions by topic; {} for a consumer with `assign`, None: unknown."""

    client_id: str
    address: str
    language: str
    version: int
    subscriptions: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class LockedQueue:
    """A locked queue, the owner of its lock, and the age of the lock in seconds."""

    queue: MessageQueue
    client_id: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its brokers see it. `consume_type` and `message_model` are None if no member is connected.

    Java's brokers send neither members' subscriptions nor locks: `locks` is then None.
    """

    group: str
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    members: list[GroupMember]
    locks: list[LockedQueue] | None

    @property
    def differences(self) -> Differences:
        """Differing subscriptions: client ids by topic and expression."""
        return differences({member.client_id: member.subscriptions or {} for member in self.members})


def put_together(group: str, answers: Iterable[ConsumerConnection]) -> GroupState:
    """Return the state joined from the responses of several brokers."""
    answers = list(answers)
    online = next((answer for answer in answers if answer.connections), None)
    told = [answer.locks for answer in answers if answer.locks is not None]
    members: dict[str, GroupMember] = {}
    for answer in answers:
        for connection in answer.connections:
            members[connection.client_id] = _member(connection, members.get(connection.client_id))
    return GroupState(
        group,
        consume_type=online.consume_type if online else None,
        message_model=online.message_model if online else None,
        subscriptions={topic: each.expression for answer in answers for topic, each in answer.subscriptions.items()},
        members=[members[client_id] for client_id in sorted(members)],
        locks=sorted(_locks(told), key=lambda lock: lock.queue) if told or not answers else None,
    )


def _member(connection: Connection, known: GroupMember | None) -> GroupMember:
    """Return a member with one more broker's data."""
    subscriptions = connection.subscriptions
    if known is not None and known.subscriptions is not None:
        subscriptions = known.subscriptions | (subscriptions or {})
    return GroupMember(
        connection.client_id, connection.client_address, connection.language, connection.version, subscriptions
    )


def _locks(told: list[list[LockHolder]]) -> Iterable[LockedQueue]:
    for locks in told:
        for lock in locks:
            yield LockedQueue(lock.queue.queue, lock.client_id, lock.age_ms / 1000)
