"""The tables of a broker that follow the log in a replica set: their names, and how each is copied."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pyromq.broker.replicated_table import ChangedKeys, ReplicatedTable
from pyromq.remoting.bodies import FILE, GroupConfigTable, TopicConfigTable, decode_body, encode_body
from pyromq.remoting.bodies.body import Body
from pyromq.store.message_store import MessageStore

if TYPE_CHECKING:
    from pyromq.broker.role import BrokerRole
    from pyromq.broker.shared_state import SharedState

OFFSETS_SECONDS = 0.2  # time between two copies of consumer offsets; a failover redelivers the messages of this time

B = TypeVar("B", bound=Body)


def replicated_tables(state: SharedState) -> list[ReplicatedTable]:
    """Return the tables of a broker in the order in which a new follower gets them."""
    topics, groups, offsets, locks = state.topics, state.groups, state.offsets, state.queue_locks
    store, deleted, settings, accounts = state.store, state.deleted_topics, state.changed_settings, state.accounts
    offsets.changed, locks.changed = ChangedKeys(), ChangedKeys()
    tables = [
        _whole(
            "topics",
            lambda: topics.version,
            lambda: encode_body(topics.table()),
            lambda data: topics.adopt(_body(TopicConfigTable, data)),
        ),
        _whole(
            "groups",
            lambda: groups.version,
            lambda: encode_body(groups.table()),
            lambda data: groups.adopt(_body(GroupConfigTable, data)),
        ),
        ReplicatedTable(
            name="firstByte",
            version=lambda: store.min_log_offset,
            encode=lambda _: msgspec.json.encode(store.min_log_offset),
            adopt=lambda data: _adopt_first_byte(state.role, store, msgspec.json.decode(data, type=int)),
        ),
        ReplicatedTable(  # gives a new follower the next offsets of queues without a message in its log
            name="expiredQueues",
            version=lambda: store.min_log_offset,
            encode=lambda _: msgspec.json.encode(store.expired_ends()),
            adopt=lambda data: store.begin_queues(msgspec.json.decode(data, type=dict[str, dict[int, int]])),
        ),
        _changes("queueLocks", locks.changed, locks.encode_changed, locks.adopt),
        _changes(
            "consumerOffsets",
            offsets.changed,
            offsets.encode_changed,
            lambda data: offsets.adopt(data, store.max_offset),
            follows_log=True,
        ),
    ]
    if deleted is not None:
        tables.insert(0, _whole("deletedTopics", lambda: deleted.version, deleted.encode, deleted.adopt))
    tables.append(_whole("settings", lambda: settings.version, settings.encode, settings.adopt))
    if accounts is not None:
        tables.append(_whole("permissions", lambda: accounts.version, accounts.encode, accounts.adopt))
    return tables


def _whole(
    name: str,
    version: Callable[[], Hashable],
    encode: Callable[[], bytes],
    adopt: Callable[[bytes], Future[None] | None],
) -> ReplicatedTable:
    """Return a table that is copied as a whole after each change. A change must be confirmed by the replicas."""
    return ReplicatedTable(name=name, version=version, encode=lambda _: encode(), adopt=adopt, is_confirmed=True)


def _changes(
    name: str,
    changed: ChangedKeys,
    encode: Callable[[int | None], bytes],
    adopt: Callable[[bytes], None],
    *,
    follows_log: bool = False,
) -> ReplicatedTable:
    """Return a table of which only the changed keys are copied."""
    return ReplicatedTable(
        name=name,
        version=lambda: changed.version,
        encode=lambda since: encode(since if isinstance(since, int) else None),
        adopt=adopt,
        waits_for_log=follows_log,
        seconds=OFFSETS_SECONDS if follows_log else 0.0,
    )


def _body(kind: type[B], data: bytes) -> B:
    return decode_body(kind, data, FILE)


def _adopt_first_byte(role: BrokerRole, store: MessageStore, first: int) -> None:
    """Delete whole files of the log up to the master's first byte, and none before that."""
    role.log_needed_from = first
    store.retention.expired_to = first
