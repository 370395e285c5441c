"""The modules of a broker, each made of the tables in `SharedState`.

A module is one feature: its processors, its background tasks, and the functions that the broker calls when it starts
and stops. A broker is a list of modules, started in order and stopped in reverse order. A module has no reference to
other modules.

    load      in order: the store is open               stop      reverse: requests still arrive
    repair      in order: the port is open                close     reverse: no request arrives, no step runs
    start     in order: requests arrive, no step ran    persist   reverse: the store is closed and flushed

A follower calls neither `repair` nor `start` of a module that is for masters only, and runs none of its steps. When the
follower becomes the master, it calls `lead` of all modules, then `repair` and `start` of these, and runs their steps.

Between `start` and `stop`, requests are answered, steps run, and `unsaved` tables are saved periodically, in reverse
order. So a module may write into the table of an earlier module, which is saved later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING

from pyromq.broker.admin.consume_stats_processor import ConsumeStatsProcessor
from pyromq.broker.admin.figures_processor import FiguresProcessor
from pyromq.broker.admin.group_processor import GroupProcessor
from pyromq.broker.admin.member_call_processor import MemberCallProcessor
from pyromq.broker.admin.query_message_processor import QueryMessageProcessor
from pyromq.broker.admin.runtime_info_processor import RuntimeInfoProcessor
from pyromq.broker.admin.settings_processor import SettingsProcessor
from pyromq.broker.admin.topic_processor import TopicProcessor
from pyromq.broker.batches.batch_transaction_processor import BatchTransactionProcessor
from pyromq.broker.compiled_handlers import fast_pops, fast_pulls, fast_sends
from pyromq.broker.consuming.offset_processor import OffsetProcessor
from pyromq.broker.consuming.pull_processor import PullProcessor
from pyromq.broker.consuming.queue_locks import QueueLockProcessor
from pyromq.broker.consuming.send_back_processor import SendBackProcessor
from pyromq.broker.delays.timer_processors import RecallMessageProcessor, TimerListProcessor
from pyromq.broker.members.heartbeat_processor import HeartbeatProcessor
from pyromq.broker.permissions.account_processor import AccountProcessor
from pyromq.broker.permissions.rules import PermissionGuard, Rules, topic_at
from pyromq.broker.popping.ack_processor import AckProcessor
from pyromq.broker.popping.assignment_processor import AssignmentProcessor
from pyromq.broker.popping.pop_admission import PopAdmission
from pyromq.broker.popping.pop_processor import PopProcessor
from pyromq.broker.popping.redelivery import Redelivery
from pyromq.broker.producing.reply_message_processor import ReplyMessageProcessor
from pyromq.broker.producing.send_processor import SendProcessor
from pyromq.broker.shared_state import SharedState
from pyromq.broker.transactions.end_transaction_processor import EndTransactionProcessor
from pyromq.broker.transactions.transaction_checks import TransactionChecks
from pyromq.errors import StoreError, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.names import REPLY_SUFFIX
from pyromq.net.tasks import Alarm
from pyromq.permissions.acl_files import AclFolder
from pyromq.permissions.permissions import CHECK_SECONDS, AclWatch
from pyromq.plural import counted
from pyromq.remoting.dispatch import Guard
from pyromq.remoting.hooks import RemotingHook
from pyromq.store.worker import worker

if TYPE_CHECKING:
    from pyromq.speedups.fast_path import FastHandler

logger = logger_of(__name__)

EXPIRE_CLIENTS_SECONDS = 10.0  # time between two searches for clients without heartbeats
EXPIRE_LOCKS_SECONDS = 60.0  # time between two searches for expired locks of orderly consumers
DELETED_TOPICS_SECONDS = 0.2  # time between two checks of a follower for deletions that its log has reached
EXPIRE_PULLS_SECONDS = 0.25  # time between two searches for expired long polls: longest delay of their replies

Save = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Step:
    """A background task that runs in slices of a few milliseconds.

    `act` runs one slice and returns the seconds until its next call. After None, `act` is called when the alarm fires,
    or never without an alarm.
    """

    act: Callable[[], float | None]
    alarm: Alarm | None = None
    first_after: float = 0.0  # seconds before the first call of `act`


def periodic(seconds: float, act: Callable[[], object]) -> Step:
    """Return a step that calls `act` every `seconds`, the first time after `seconds`."""

    @wraps(act)
    def again() -> float:
        act()
        return seconds

    return Step(again, first_after=seconds)


def _nothing() -> None:
    pass


async def _nothing_to_wait_for() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BrokerModule:
    """One feature of a broker. Each field may be left out.

    If `load` raises an error, the broker does not start. `unsaved` returns a function that saves unsaved state in any
    thread, or None without unsaved state. `persist` saves all remaining state. If a save or `close` raises
    `StoreNotWritable`, the other modules are still saved.
    """

    answerers: Sequence[object] = ()  # objects whose methods marked by `@answers` answer requests
    fast_path: Sequence[FastHandler] = ()  # compiled handlers, called before `answerers`, with the same replies
    guard: Guard | None = None  # called before each request is answered; at most one module has a guard
    hooks: Sequence[RemotingHook] = ()  # called for each call at the broker's port
    steps: Sequence[Step] = ()
    # Whether `repair`, `start` and `steps` wait until the broker is the master: they append records.
    master_only: bool = False
    load: Callable[[], None] = _nothing
    lead: Callable[[], None] = _nothing  # called in order when a follower becomes the master, before `repair`
    repair: Callable[[], None] = _nothing  # completes writes that a crash interrupted; may append records
    start: Callable[[], Awaitable[None]] = _nothing_to_wait_for
    unsaved: Callable[[], Save | None] = _nothing
    log_needed_from: Callable[[], int] | None = None  # returns the log offset before which no record is needed
    stop: Callable[[], Awaitable[None]] = _nothing_to_wait_for
    close: Callable[[], None] = _nothing
    persist: Callable[[], None] = _nothing


def consumer_offsets(state: SharedState) -> BrokerModule:
    """Return the module that saves consumer offsets.

    Consumer offsets are saved before the store closes, even if closing fails, and again after all other modules.
    """
    offsets = state.offsets

    def load() -> None:
        offsets.load()
        if state.role.is_master:  # a power loss may have cut the log: new messages must not be skipped
            offsets.lower(state.store.next_offset)
            with suppress(StoreError):  # a kill before the next save would bring the higher offsets back
                offsets.persist()

    return BrokerModule(
        load=load,
        lead=partial(offsets.lower, state.store.next_offset),
        unsaved=offsets.unsaved,
        close=offsets.persist,
        persist=offsets.persist,
    )


def consumer_groups(state: SharedState) -> BrokerModule:
    groups = state.groups

    def persist() -> None:
        if (save := groups.unsaved()) is not None:
            save()

    return BrokerModule(load=groups.load, unsaved=groups.unsaved, close=groups.close, persist=persist)


def topics(state: SharedState) -> BrokerModule:
    return BrokerModule(load=state.topics.load, close=state.topics.close)


def deleted_topics(state: SharedState) -> BrokerModule:
    """Return the module that remembers deleted topics for replicas; an empty module for a broker outside of sets."""
    deleted, role = state.deleted_topics, state.role
    if deleted is None:
        return BrokerModule()

    def apply() -> None:
        if not role.is_master:
            deleted.apply()

    return BrokerModule(
        load=deleted.load, lead=deleted.lead, steps=[periodic(DELETED_TOPICS_SECONDS, apply)], close=deleted.close
    )


def built_in(state: SharedState) -> BrokerModule:
    """Return the module that writes the topics and groups of a new folder, once all earlier modules are loaded."""

    def load() -> None:
        lost = sorted(state.topics.deleted_among(state.store.topics())) if state.role.is_master else []
        if lost:  # config/topics.json was lost, since a deleted topic has no queues
            logger.warning(
                "%s with messages and without settings: %s; restore config/topics.json from a backup, or create them"
                " with `pyromq topic create NAME --queues N`; `pyromq cluster clean` deletes their messages",
                *(counted(len(lost), "topic"), ", ".join(lost[:10]) + ", ..." * (len(lost) > 10)),
            )
        try:
            state.topics.persist()
            state.groups.persist()
        except StoreNotWritable as error:  # a full disk must not prevent reading of stored messages
            logger.warning("%s; no data is lost; changes are refused until the disk can be written again", error)

    return BrokerModule(load=load)


def delay_levels(state: SharedState) -> BrokerModule:
    levels, role = state.delay_levels, state.role

    @wraps(levels.deliver)
    def act() -> float | None:
        return levels.deliver() if role.is_master else levels.follow_master()

    return BrokerModule(
        load=levels.load if role.is_master else levels.load_to_follow,
        lead=levels.lead,
        steps=[Step(act, levels.alarm)],
        unsaved=levels.unsaved,
        log_needed_from=lambda: levels.log_needed_from,
        persist=levels.persist,
    )


def timers(state: SharedState) -> BrokerModule:
    timers = state.timers
    role = state.role

    @wraps(timers.step)
    def act() -> float | None:
        return timers.step() if role.is_master else timers.follow_master()

    listing = TimerListProcessor(timers, broker_name=state.config.name, clock=state.clock)
    return BrokerModule(
        answerers=[RecallMessageProcessor(state), listing],
        load=timers.load if state.role.is_master else timers.index.load_to_follow,
        lead=timers.index.lead,
        steps=[Step(act, timers.alarm)],
        unsaved=timers.unsaved,
        log_needed_from=lambda: timers.index.log_needed_from,
        persist=timers.persist,
    )


def transactions(state: SharedState) -> BrokerModule:
    half_messages = state.half_messages
    checks = TransactionChecks(state)
    deciding = EndTransactionProcessor(
        state.put_message,
        half_messages,
        delay_levels=state.delay_levels,
        confirmation=state.confirmation,
        store=state.store,
        permissions=state.permissions,
    )
    return BrokerModule(
        master_only=True,
        answerers=[deciding],
        load=half_messages.load,
        repair=half_messages.repair,
        steps=[Step(checks.step, checks.alarm)],
        unsaved=half_messages.note_progress,  # enters progress in the table of consumer offsets
        log_needed_from=lambda: half_messages.log_needed_from,
        persist=partial(half_messages.note_progress, closed=True),
    )


def batch_transactions(state: SharedState) -> BrokerModule:
    batches = state.batches
    return BrokerModule(
        master_only=True,
        answerers=[BatchTransactionProcessor(state)],
        load=batches.load,
        repair=batches.repair,
        steps=[Step(batches.step, batches.alarm)],
        unsaved=batches.note_progress,  # enters progress in the table of consumer offsets
        log_needed_from=lambda: batches.log_needed_from,
        persist=partial(batches.note_progress, closed=True),
    )


def producing(state: SharedState) -> BrokerModule:
    return BrokerModule(answerers=[SendProcessor(state), ReplyMessageProcessor(state)], fast_path=fast_sends(state))


def consuming(state: SharedState) -> BrokerModule:
    long_polls, queue_locks = state.long_polls, state.queue_locks
    pulling = PullProcessor(state)

    async def stop() -> None:
        long_polls.answer_all()

    return BrokerModule(
        answerers=[pulling, OffsetProcessor(state), QueueLockProcessor(queue_locks), SendBackProcessor(state)],
        fast_path=fast_pulls(state, pulling),
        steps=[
            periodic(EXPIRE_PULLS_SECONDS, long_polls.expire),
            Step(queue_locks.notify_refused, queue_locks.alarm),
            periodic(EXPIRE_LOCKS_SECONDS, queue_locks.expire),
        ],
        stop=stop,
        close=state.cold_reads.close,
    )


def popping(state: SharedState) -> BrokerModule:
    table, waiting = state.pops, state.waiting_pops
    admission = PopAdmission(state.config, state.topics, state.groups)
    popping = PopProcessor(state, table, waiting, admission)
    redelivery = Redelivery(state, table, waiting)
    assigning = AssignmentProcessor(state)

    def load() -> None:
        assigning.load()
        if state.role.is_master:
            table.load()
        else:
            table.discard()

    def close() -> None:
        assigning.close()
        table.close()

    return BrokerModule(
        master_only=True,
        answerers=[popping, AckProcessor(table, admission, waiting), assigning],
        fast_path=fast_pops(state, popping),
        load=load,
        lead=table.lead,
        steps=[Step(redelivery.step, table.alarm), Step(table.journal_step, table.journal_alarm)],
        close=close,
    )


def members(state: SharedState) -> BrokerModule:
    connections = state.connections
    return BrokerModule(
        answerers=[HeartbeatProcessor(state)],
        steps=[periodic(EXPIRE_CLIENTS_SECONDS, connections.expire), Step(connections.step, connections.alarm)],
    )


def administration(state: SharedState) -> BrokerModule:
    return BrokerModule(
        answerers=[
            SettingsProcessor(state),
            TopicProcessor(state),
            GroupProcessor(state),
            MemberCallProcessor(state),
            ConsumeStatsProcessor(state),
            FiguresProcessor(state),
            QueryMessageProcessor(state),
            RuntimeInfoProcessor(state),
        ],
        close=state.changed_settings.close,
    )


def permissions(state: SharedState) -> BrokerModule:
    """Return the module that guards the port and keeps the accounts; an empty module if permissions are off."""
    config = state.config
    if not config.permissions:
        return BrokerModule()
    in_force = state.permissions
    folder = AclFolder(config.permissions_folder)
    watch = state.accounts = AclWatch(folder, in_force, worker(state.store.disk, "permissions"))
    rules = Rules(partial(topic_at, state.store), config.cluster + REPLY_SUFFIX, state.batches.undecided)
    return BrokerModule(
        answerers=[AccountProcessor(state, watch, folder)],
        guard=PermissionGuard(in_force, rules, state.refusals),
        load=watch.load,
        steps=[periodic(CHECK_SECONDS, watch.check)],
        close=watch.close,
    )
