"""Consuming as a part of a broker: all that is asked by who consumes."""

from __future__ import annotations

from collections.abc import Callable

from pyromq.broker.consuming.express_pulls import express_pulls
from pyromq.broker.consuming.offset_moved_events import OffsetMovedEvents
from pyromq.broker.consuming.offset_queries import Consuming
from pyromq.broker.consuming.pulling import Pulling
from pyromq.broker.consuming.queue_locking import Locking
from pyromq.broker.consuming.send_back import Retrying
from pyromq.broker.part import Part, Step, periodic
from pyromq.broker.shared_state import SharedState

EXPIRE_LOCKS_SECONDS = 60.0
EXPIRE_PULLS_SECONDS = 0.25  # how late a parked pull may be told that its time is up


def consuming(state: SharedState, run_soon: Callable[[Callable[[], None]], object]) -> Part:
    """`run_soon` runs a function when the loop's turn has ended."""
    store, topics, groups, config = state.store, state.topics, state.groups, state.config
    offsets, connections, statistics, cold_reads = state.offsets, state.connections, state.statistics, state.cold_reads
    long_polls = state.long_polls
    long_polls.run_soon = run_soon
    store.listen(long_polls.arrived)
    store.batch_appends.on_append = long_polls.came_together
    pulling = Pulling(
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

    retrying = Retrying(
        state.put_message,
        admission=state.admission,
        confirmation=state.confirmation,
        store=store,
        topics=topics,
        groups=groups,
        statistics=statistics,
        cold_reads=cold_reads,
    )

    async def stop() -> None:
        long_polls.answer_all()

    return Part(
        answerers=[
            pulling,
            Consuming(
                store,
                topics,
                offsets=offsets,
                connections=connections,
                cold_reads=cold_reads,
                long_answers=state.long_answers,
            ),
            Locking(state.queue_locks, state.long_answers),
            retrying,
        ],
        express=express_pulls(state, pulling),
        steps=[
            periodic(EXPIRE_PULLS_SECONDS, long_polls.expire),
            Step(state.queue_locks.tell_refused, state.queue_locks.alarm),
            periodic(EXPIRE_LOCKS_SECONDS, state.queue_locks.expire),
        ],
        stop=stop,
        close=cold_reads.close,
    )
