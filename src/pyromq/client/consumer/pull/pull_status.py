"""What a pull consumer shows of itself when a broker asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.consumer_status import Consumption
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import ConsumerEntry, PulledQueue


def consumption(
    assigned: Mapping[MessageQueue, AssignedQueue],
    config: ConsumerConfig,
    *,
    entry: Callable[[], ConsumerEntry],
    go_on_at: Callable[[AssignedQueue, int], None],
    wake: Callable[[], None],
) -> Consumption:
    """Return what others may know and do of a consumer to which these queues are assigned."""

    def reset(offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue in assigned and not assigned[queue].leaving:
                go_on_at(assigned[queue], offset)

    settings = {
        "PROP_CONSUMEORDERLY": "false",
        "autoCommit": str(config.auto_commit).lower(),
        "autoCommitIntervalMillis": str(int(config.auto_commit_seconds * 1000)),
    }
    return Consumption(
        config,
        settings,
        entry,
        positions=lambda: {queue: each.position for queue, each in assigned.items()},
        queues=lambda: {queue: _pulled(each) for queue, each in assigned.items()},
        reset=reset,
        wake=wake,
    )


def _pulled(assigned: AssignedQueue) -> PulledQueue:
    return PulledQueue(
        commit_offset=max(assigned.committed, 0),
        cached_min_offset=assigned.position if assigned.ready_count else 0,
        cached_max_offset=assigned.fetch_offset - 1 if assigned.ready_count else 0,
        cached_count=assigned.ready_count,
        cached_mebibytes=assigned.ready_bytes >> 20,
        dropped=assigned.leaving,
        last_pull_ms=assigned.pulled_ms,
        last_consume_ms=assigned.polled_ms,
    )
