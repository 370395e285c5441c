"""The modules of a broker, each made of the tables in `SharedState`."""

from __future__ import annotations

from functools import partial

from pyromq.broker.admin.consume_stats_processor import ConsumeStatsProcessor
from pyromq.broker.admin.figures_processor import FiguresProcessor
from pyromq.broker.admin.group_processor import GroupProcessor
from pyromq.broker.admin.member_call_processor import MemberCallProcessor
from pyromq.broker.admin.query_message_processor import QueryMessageProcessor
from pyromq.broker.admin.runtime_info_processor import RuntimeInfoProcessor
from pyromq.broker.admin.settings_processor import SettingsProcessor
from pyromq.broker.admin.topic_processor import TopicProcessor
from pyromq.broker.batches.batch_transaction_processor import BatchTransactionProcessor
from pyromq.broker.consuming.offset_processor import OffsetProcessor
from pyromq.broker.consuming.pull_processor import PullProcessor, fast_pulls
from pyromq.broker.consuming.queue_locks import QueueLockProcessor
from pyromq.broker.consuming.send_back_processor import SendBackProcessor
from pyromq.broker.delays.timer_processors import RecallMessageProcessor, TimerListProcessor
from pyromq.broker.members.heartbeat_processor import HeartbeatProcessor
from pyromq.broker.module import BrokerModule, Step, periodic
from pyromq.broker.permissions.account_processor import AccountProcessor
from pyromq.broker.permissions.rules import PermissionGuard, Rules, topic_at
from pyromq.broker.producing.reply_message_processor import ReplyMessageProcessor
from pyromq.broker.producing.send_processor import SendProcessor, fast_sends
from pyromq.broker.shared_state import SharedState
from pyromq.broker.transactions.end_transaction_processor import EndTransactionProcessor
from pyromq.broker.transactions.transaction_checks import TransactionChecks
from pyromq.errors import StoreNotWritable
from pyromq.logs import logger_of
from pyromq.names import REPLY_SUFFIX
from pyromq.permissions.acl_folder import AclFolder
from pyromq.permissions.acl_watch import LOOK_SECONDS, AclWatch
from pyromq.store.worker import worker

EXPIRE_CLIENTS_SECONDS = 10.0
EXPIRE_LOCKS_SECONDS = 60.0
EXPIRE_PULLS_SECONDS = 0.25  # longest delay of the reply to a long poll whose time is up

logger = logger_of(__name__)


def consumer_offsets(state: SharedState) -> BrokerModule:
    """Consumer offsets are saved before the store closes, even if closing fails, and once more after other modules."""
    offsets = state.offsets
    return BrokerModule(load=offsets.load, unsaved=offsets.unsaved, close=offsets.persist, persist=offsets.persist)


def consumer_groups(state: SharedState) -> BrokerModule:
    groups = state.groups

    def persist() -> None:
        if (save := groups.unsaved()) is not None:
            save()

    return BrokerModule(load=groups.load, unsaved=groups.unsaved, close=groups.close, persist=persist)


def topics(state: SharedState) -> BrokerModule:
    return BrokerModule(load=state.topics.load, close=state.topics.close)


def built_in(state: SharedState) -> BrokerModule:
    """Write the topics and groups of a new folder, after everything else is loaded."""

    def write() -> None:
        try:
            state.topics.persist()
            state.groups.persist()
        except StoreNotWritable as error:  # stored messages can be read although the disk is full
            logger.warning("%s; nothing is lost; the next change is refused if it cannot be written either", error)

    return BrokerModule(load=write)


def delay_levels(state: SharedState) -> BrokerModule:
    levels = state.delay_levels
    return BrokerModule(
        load=levels.load,
        steps=[Step(levels.deliver, levels.alarm)],
        unsaved=levels.unsaved,
        log_needed_from=lambda: levels.log_needed_from,
        persist=levels.persist,
    )


def timers(state: SharedState) -> BrokerModule:
    timers = state.timers
    listing = TimerListProcessor(timers, broker_name=state.config.name, clock=state.clock)
    return BrokerModule(
        answerers=[RecallMessageProcessor(state), listing],
        load=timers.load,
        steps=[Step(timers.step, timers.alarm)],
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
        answerers=[deciding],
        load=half_messages.load,
        mend=half_messages.mend,
        steps=[Step(checks.step, checks.alarm)],
        unsaved=half_messages.note_progress,  # in the table of consumer offsets
        log_needed_from=lambda: half_messages.log_needed_from,
        persist=partial(half_messages.note_progress, closed=True),
    )


def batch_transactions(state: SharedState) -> BrokerModule:
    batches = state.batches
    return BrokerModule(
        answerers=[BatchTransactionProcessor(state)],
        load=batches.load,
        steps=[Step(batches.step, batches.alarm)],
        unsaved=batches.note_progress,  # in the table of consumer offsets
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
            Step(queue_locks.tell_refused, queue_locks.alarm),
            periodic(EXPIRE_LOCKS_SECONDS, queue_locks.expire),
        ],
        stop=stop,
        close=state.cold_reads.close,
    )


def members(state: SharedState) -> BrokerModule:
    connections = state.connections
    return BrokerModule(
        answerers=[HeartbeatProcessor(state)],
        steps=[periodic(EXPIRE_CLIENTS_SECONDS, connections.expire), Step(connections.step, connections.alarm)],
    )


def administration(state: SharedState) -> BrokerModule:
    settings = SettingsProcessor(state)
    return BrokerModule(
        answerers=[
            settings,
            TopicProcessor(state),
            GroupProcessor(state),
            MemberCallProcessor(state),
            ConsumeStatsProcessor(state),
            FiguresProcessor(state),
            QueryMessageProcessor(state),
            RuntimeInfoProcessor(state),
        ],
        close=settings.close,
    )


def permissions(state: SharedState) -> BrokerModule:
    """Return the guard of the port and what keeps its accounts; an empty module if permissions are off."""
    config = state.config
    if not config.permissions:
        return BrokerModule()
    in_force = state.permissions
    folder = AclFolder(config.permissions_folder)
    watch = AclWatch(folder, in_force, worker(state.store.disk, "permissions"))
    rules = Rules(partial(topic_at, state.store), config.cluster + REPLY_SUFFIX, state.batches.undecided)
    return BrokerModule(
        answerers=[AccountProcessor(in_force, watch, folder, config=config, clock=state.clock)],
        guard=PermissionGuard(in_force, rules, state.refusals),
        load=watch.load,
        steps=[periodic(LOOK_SECONDS, watch.look)],
        close=watch.close,
    )
