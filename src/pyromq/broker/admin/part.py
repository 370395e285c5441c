"""What administrators and tools ask, as a part of a broker."""

from __future__ import annotations

from pyromq.broker.admin.consume_stats import Progress
from pyromq.broker.admin.consume_stats_answers import Tracking
from pyromq.broker.admin.figures import Summing
from pyromq.broker.admin.group_admin import Grouping
from pyromq.broker.admin.member_calls import Relaying
from pyromq.broker.admin.message_queries import Querying
from pyromq.broker.admin.runtime_info import Inspecting
from pyromq.broker.admin.settings_admin import Configuring
from pyromq.broker.admin.topic_admin import Administering
from pyromq.broker.part import Part
from pyromq.broker.shared_state import SharedState


def administration(state: SharedState) -> Part:
    store, topics, groups, config = state.store, state.topics, state.groups, state.config
    offsets, connections, statistics = state.offsets, state.connections, state.statistics
    long_answers = state.long_answers
    configuring = Configuring(
        config, state.settings, topics=topics, announce_all=state.registering.announce_all, clock=state.clock
    )
    return Part(
        close=configuring.close,
        answerers=[
            Administering(
                store,
                topics,
                offsets=offsets,
                connections=connections,
                statistics=statistics,
                config=config,
                long_answers=long_answers,
                announce=state.registering.announce,
            ),
            Grouping(
                groups, offsets, delay_levels=state.delay_levels, statistics=statistics, long_answers=long_answers
            ),
            configuring,
            Relaying(
                store,
                topics,
                offsets=offsets,
                connections=connections,
                broker_name=config.name,
                cold_reads=state.cold_reads,
                long_answers=long_answers,
            ),
            _tracking(state),
            _summing(state),
            _querying(state),
            Inspecting(
                store,
                connections,
                state.offsets,
                queue_locks=state.queue_locks,
                confirmation=state.confirmation,
                cold_reads=state.cold_reads,
                long_answers=long_answers,
                statistics=statistics,
                delay_levels=state.delay_levels,
                refusals=state.refusals,
                permissions=state.permissions,
                clock=state.clock,
            ),
        ],
    )


def _tracking(state: SharedState) -> Tracking:
    progress = Progress(
        state.store, state.offsets, statistics=state.statistics, broker_name=state.config.name, clock=state.clock
    )
    return Tracking(
        progress,
        state.topics,
        groups=state.groups,
        offsets=state.offsets,
        connections=state.connections,
        cold_reads=state.cold_reads,
        config=state.config,
        long_answers=state.long_answers,
    )


def _querying(state: SharedState) -> Querying:
    return Querying(
        state.store,
        state.indexing,
        state.connections,
        cold_reads=state.cold_reads,
        limits=state.config.limits,
        long_answers=state.long_answers,
    )


def _summing(state: SharedState) -> Summing:
    return Summing(
        state.store,
        state.topics,
        groups=state.groups,
        offsets=state.offsets,
        connections=state.connections,
        cold_reads=state.cold_reads,
        long_answers=state.long_answers,
        clock=state.clock,
    )
