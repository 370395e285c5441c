"""The tables of topics, groups and offsets, as parts of a broker: what is loaded first and written last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyromq.broker.admin.consume_stats_processor import ConsumeStatsProcessor, ConsumeStatsReader
from pyromq.broker.admin.figures_processor import FiguresProcessor
from pyromq.broker.admin.group_processor import GroupProcessor
from pyromq.broker.admin.member_call_processor import MemberCallProcessor
from pyromq.broker.admin.query_message_processor import QueryMessageProcessor
from pyromq.broker.admin.runtime_info_processor import RuntimeInfoProcessor
from pyromq.broker.admin.settings_processor import SettingsProcessor
from pyromq.broker.admin.topic_processor import TopicProcessor
from pyromq.broker.batches.batch_transaction_processor import BatchTransactionProcessor
from pyromq.broker.consuming.offset_moved_events import OffsetMovedEvents
from pyromq.broker.consuming.offset_processor import OffsetProcessor
from pyromq.broker.consuming.pull_processor import PullProcessor, fast_pulls
from pyromq.broker.consuming.queue_locks import QueueLockProcessor
from pyromq.broker.consuming.send_back_processor import SendBackProcessor
from pyromq.broker.delays.timer_processors import RecallMessageProcessor, TimerListProcessor
from pyromq.broker.members.heartbeat_processor import HeartbeatProcessor
from pyromq.broker.module import BrokerModule, Step, periodic
from pyromq.broker.permissions.account_processor import AccountProcessor
from pyromq.broker.permissions.rules import PermissionGuard, Rules
from pyromq.broker.producing.reply_message_processor import ReplyMessageProcessor
from pyromq.broker.producing.send_processor import SendProcessor, fast_sends
from pyromq.broker.shared_state import SharedState
from pyromq.broker.transactions.end_transaction_processor import EndTransactionProcessor
from pyromq.broker.transactions.transaction_checks import TransactionChecks
from pyromq.errors import StoreError, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage
from pyromq.names import NOT_FOR_CLIENTS, REPLY_SUFFIX, SYSTEM_TOPIC_PREFIX
from pyromq.permissions.acl_folder import AclFolder
from pyromq.permissions.acl_watch import LOOK_SECONDS, AclWatch
from pyromq.slow_work import NotInMemory
from pyromq.store.worker import worker

EXPIRE_CLIENTS_SECONDS = 10.0

EXPIRE_LOCKS_SECONDS = 60.0
EXPIRE_PULLS_SECONDS = 0.25  # how late a parked pull may be told that its time is up

logger = logger_of(__name__)


def consumer_offsets(state: SharedState) -> BrokerModule:
    """Written before the store is closed, whatever becomes of that, and again with what other parts note after it."""
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
    """The topics and groups of a new folder, written when all else is loaded."""

    def write() -> None:
        try:
            state.topics.persist()
            state.groups.persist()
        except StoreNotWritable as error:  # a full disk: what is stored can be read all the same
            logger.warning("%s; nothing is lost by it, the next change is refused if that is still so", error)

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
    listing = TimerListProcessor(
        timers,
        broker_name=state.config.name,
        clock=state.clock,
    )
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
    checks = TransactionChecks(
        state.store,
        half_messages,
        topics=state.topics,
        connections=state.connections,
        cold_reads=state.cold_reads,
        permissions=state.permissions,
        config=state.config,
        clock=state.clock,
    )
    return BrokerModule(
        answerers=[
            EndTransactionProcessor(
                state.put_message,
                half_messages,
                delay_levels=state.delay_levels,
                confirmation=state.confirmation,
                store=state.store,
                permissions=state.permissions,
            )
        ],
        load=half_messages.load,
        mend=half_messages.mend,
        steps=[Step(checks.step, checks.alarm)],
        unsaved=half_messages.note_progress,  # in the table of offsets
        log_needed_from=lambda: half_messages.log_needed_from,
        persist=partial(half_messages.note_progress, closed=True),
    )


def batch_transactions(state: SharedState) -> BrokerModule:
    batches = state.batches
    return BrokerModule(
        answerers=[
            BatchTransactionProcessor(
                batches,
                admission=state.admission,
                confirmation=state.confirmation,
                config=state.config,
                permissions=state.permissions,
            )
        ],
        load=batches.load,
        steps=[Step(batches.step, batches.alarm)],
        unsaved=batches.note_progress,  # in the table of offsets
        log_needed_from=lambda: batches.log_needed_from,
        persist=partial(batches.note_progress, closed=True),
    )


def producing(state: SharedState) -> BrokerModule:
    sending = SendProcessor(
        state.put_message,
        internal_topics=state.internal_topics,
        admission=state.admission,
        confirmation=state.confirmation,
        store=state.store,
        topics=state.topics,
        groups=state.groups,
        config=state.config,
        refusals=state.refusals,
    )
    replying = ReplyMessageProcessor(
        state.put_message,
        admission=state.admission,
        confirmation=state.confirmation,
        store=state.store,
        connections=state.connections,
        config=state.config,
        clock=state.clock,
    )
    return BrokerModule(answerers=[sending, replying], fast_path=fast_sends(state))


def consuming(state: SharedState, run_soon: Callable[[Callable[[], None]], object]) -> BrokerModule:
    """`run_soon` runs a function when the loop's turn has ended."""
    store, topics, groups, config = state.store, state.topics, state.groups, state.config
    offsets, connections, statistics, cold_reads = state.offsets, state.connections, state.statistics, state.cold_reads
    long_polls = state.long_polls
    long_polls.run_soon = run_soon
    store.listen(long_polls.arrived)
    store.batch_appends.on_append = long_polls.came_together
    pulling = PullProcessor(
        store,
        topics,
        groups,
        connections=connections,
        offsets=offsets,
        long_polls=long_polls,
        cold_reads=cold_reads,
        statistics=statistics,
        moved=OffsetMovedEvents(state.put_message, config.name, state.clock),
        permissions=state.permissions,
        config=config,
        clock=state.clock,
    )

    retrying = SendBackProcessor(
        state.put_message,
        delay_levels=state.delay_levels,
        admission=state.admission,
        confirmation=state.confirmation,
        store=store,
        topics=topics,
        groups=groups,
        statistics=statistics,
    )

    async def stop() -> None:
        long_polls.answer_all()

    return BrokerModule(
        answerers=[
            pulling,
            OffsetProcessor(
                store,
                topics,
                offsets=offsets,
                connections=connections,
            ),
            QueueLockProcessor(state.queue_locks),
            retrying,
        ],
        fast_path=fast_pulls(state, pulling),
        steps=[
            periodic(EXPIRE_PULLS_SECONDS, long_polls.expire),
            Step(state.queue_locks.tell_refused, state.queue_locks.alarm),
            periodic(EXPIRE_LOCKS_SECONDS, state.queue_locks.expire),
        ],
        stop=stop,
        close=cold_reads.close,
    )


def members(state: SharedState) -> BrokerModule:
    heartbeating = HeartbeatProcessor(
        state.connections,
        state.groups,
        topics=state.topics,
        config=state.config,
        clock=state.clock,
    )
    connections = state.connections
    steps = [
        periodic(EXPIRE_CLIENTS_SECONDS, connections.expire),
        Step(connections.step, connections.alarm),
    ]
    return BrokerModule(answerers=[heartbeating], steps=steps)


def administration(state: SharedState) -> BrokerModule:
    store, topics, groups, config = state.store, state.topics, state.groups, state.config
    offsets, connections, statistics = state.offsets, state.connections, state.statistics
    configuring = SettingsProcessor(
        config, state.settings, topics=topics, announce_all=state.registering.announce_all, clock=state.clock
    )
    return BrokerModule(
        close=configuring.close,
        answerers=[
            TopicProcessor(
                store,
                topics,
                offsets=offsets,
                connections=connections,
                statistics=statistics,
                config=config,
                announce=state.registering.announce,
            ),
            GroupProcessor(groups, offsets, delay_levels=state.delay_levels, statistics=statistics),
            configuring,
            MemberCallProcessor(
                store,
                topics,
                offsets=offsets,
                connections=connections,
                broker_name=config.name,
            ),
            _tracking(state),
            _summing(state),
            _querying(state),
            RuntimeInfoProcessor(
                store,
                connections,
                state.offsets,
                queue_locks=state.queue_locks,
                confirmation=state.confirmation,
                slow_replies=state.slow_replies,
                cold_reads=state.cold_reads,
                statistics=statistics,
                delay_levels=state.delay_levels,
                refusals=state.refusals,
                permissions=state.permissions,
                clock=state.clock,
            ),
        ],
    )


def _tracking(state: SharedState) -> ConsumeStatsProcessor:
    reader = ConsumeStatsReader(
        state.store, state.offsets, statistics=state.statistics, broker_name=state.config.name, clock=state.clock
    )
    return ConsumeStatsProcessor(
        reader,
        state.topics,
        groups=state.groups,
        offsets=state.offsets,
        connections=state.connections,
        config=state.config,
    )


def _querying(state: SharedState) -> QueryMessageProcessor:
    return QueryMessageProcessor(
        state.store,
        state.indexing,
        state.connections,
        limits=state.config.limits,
    )


def _summing(state: SharedState) -> FiguresProcessor:
    return FiguresProcessor(
        state.store,
        state.topics,
        groups=state.groups,
        offsets=state.offsets,
        connections=state.connections,
        clock=state.clock,
    )


def permissions(state: SharedState) -> BrokerModule:
    """The guard at the port, and the files it goes by; nothing where permissions are off."""
    config = state.config
    if not config.permissions:
        return BrokerModule()
    in_force = state.permissions
    folder = AclFolder(config.permissions_folder)
    watch = AclWatch(folder, in_force, worker(state.store.disk, "permissions"))
    rules = Rules(
        lambda log_offset: _topic_at(log_offset, state), config.cluster + REPLY_SUFFIX, state.batches.undecided
    )
    return BrokerModule(
        answerers=[AccountProcessor(in_force, watch, folder, config=config, clock=state.clock)],
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
    state.store.residency.need_record(log_offset)
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
    if to_load := queue.entry_to_load(queue_offset):
        raise NotInMemory(to_load, state.store.residency.unreadable(message.log_offset))
    return state.store.reading.log_offset_of(place) == message.log_offset
