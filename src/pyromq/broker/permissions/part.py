"""Permissions as a part of a broker."""

from __future__ import annotations

from pyromq.broker.part import Part, periodic
from pyromq.broker.permissions.account_admin import Permitting
from pyromq.broker.permissions.permission_guard import PermissionGuard
from pyromq.broker.permissions.rules import Rules
from pyromq.broker.shared_state import SharedState
from pyromq.errors import StoreError
from pyromq.message import Property, StoredMessage
from pyromq.names import NOT_FOR_CLIENTS, REPLY_SUFFIX, SYSTEM_TOPIC_PREFIX
from pyromq.permissions.acl_folder import AclFolder
from pyromq.permissions.acl_watch import LOOK_SECONDS, AclWatch
from pyromq.store.worker import worker


def permissions(state: SharedState) -> Part:
    """The guard at the port, and the files it goes by; nothing where permissions are off."""
    config = state.config
    if not config.permissions:
        return Part()
    in_force = state.permissions
    folder = AclFolder(config.permissions_folder)
    watch = AclWatch(folder, in_force, worker(state.store.disk, "permissions"))
    rules = Rules(
        lambda log_offset: _topic_at(log_offset, state), config.cluster + REPLY_SUFFIX, state.batches.undecided
    )
    return Part(
        answerers=[Permitting(in_force, watch, folder, config=config, clock=state.clock)],
        guard=PermissionGuard(in_force, rules, state.refusals),
        load=watch.load,
        steps=[periodic(LOOK_SECONDS, watch.look)],
        close=watch.close,
    )


# In the place of the topic of a record that is no message: whoever sends a body may write into it what looks like one.
NO_QUEUE = f"{SYSTEM_TOPIC_PREFIX}no_queue"


def _topic_at(log_offset: int, state: SharedState) -> str | None:
    """Return the topic that the message at a log offset is meant for; None where there is none.

    `NO_QUEUE`, on which only administrators have rights, for what no queue leads to.
    """
    state.cold_reads.need_record(log_offset)
    try:
        message = state.store.message_at(log_offset, check_crc=False)
    except StoreError:  # a record begins there, and cannot be read
        return NO_QUEUE
    if message is None:
        return None
    if not _is_queued(message, state):
        return NO_QUEUE
    if message.topic in NOT_FOR_CLIENTS:
        return message.properties.get(Property.REAL_TOPIC, message.topic)
    return message.topic


def _is_queued(message: StoredMessage, state: SharedState) -> bool:
    """Whether the queue that a message names leads to it."""
    place = state.store.reading.place(message.topic, message.queue_id, message.queue_offset)
    if place is None:
        return False
    queue, queue_offset = place
    state.cold_reads.need(queue.unread_entry(queue_offset), message.log_offset)
    return state.store.reading.begin_of(place) == message.log_offset
