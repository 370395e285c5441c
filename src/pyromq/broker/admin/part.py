"""What administrators and tools ask, as a part of a broker."""

from __future__ import annotations

from pyromq.broker.admin.consume_stats import Progress
from pyromq.broker.admin.consume_stats_answers import Tracking
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
    progress = Progress(store, offsets, statistics=statistics, broker_name=config.name, clock=state.clock)
    return Part(
        answerers=[
            Administering(
                store,
                topics,
                offsets=offsets,
                connections=connections,
                statistics=statistics,
                config=config,
                announce=state.registering.announce,
            ),
            Grouping(groups, offsets, delay_levels=state.delay_levels, statistics=statistics),
            Configuring(
                config,
                state.settings,
                topics=topics,
                announce_all=state.registering.announce_all,
                clock=state.clock,
            ),
            Relaying(store, topics, offsets=offsets, connections=connections, broker_name=config.name),
            Tracking(progress, topics, groups=groups, offsets=offsets, connections=connections, config=config),
            Querying(store, state.indexing, connections),
            Inspecting(
                store,
                connections,
                queue_locks=state.queue_locks,
                statistics=statistics,
                delay_levels=state.delay_levels,
                clock=state.clock,
            ),
        ]
    )
