"""What the compiled parts may decide for themselves about pulls that find messages, and what they are told for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyromq import speedups
from pyromq.broker.permissions.express_permits import express_permits
from pyromq.errors import MQError
from pyromq.filter.tags import TagFilter
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.header import header_layout, wire_layout
from pyromq.remoting.headers import PullMessage
from pyromq.remoting.headers.pulling import LitePullMessage
from pyromq.store.message_store import ReadStatus

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.codec import HeaderReader, ReplyWriter
    from pyromq.speedups.express import Express
    from pyromq.speedups.pulls import MOST_TAGS, PullPlan, Pulls

if TYPE_CHECKING:
    from pyromq.broker.consuming.pulling import Pulling
    from pyromq.broker.shared_state import SharedState


def express_pulls(state: SharedState, pulling: Pulling) -> list[Express]:
    """Return what answers pulls that find messages; nothing where there are no compiled parts."""
    if not speedups.is_active:
        return []
    from pyromq.broker.consuming.pulling import ANSWERS

    topics, groups, connections, statistics = state.topics, state.groups, state.connections, state.statistics
    names = [field.attribute for field in wire_layout(PullMessage)]

    def plan_for(values: list[Any]) -> PullPlan | None:
        header = PullMessage(**dict(zip(names, values, strict=True)))
        try:
            pulling.check(header)
            wanted = pulling.subscription(header)
        except MQError:
            return None  # the plain path says why
        queue = state.store.queue_tail(header.topic, header.queue_id)
        counter = statistics.gets_of(header.topic, header.consumer_group)
        if queue is None or counter is None or not isinstance(wanted, TagFilter) or len(wanted.codes) > MOST_TAGS:
            return None
        facts = []
        if not header.sys_flag & PullFlag.SUBSCRIPTION:
            group = groups.find(header.consumer_group)
            if group is None or not group.broadcast_enabled:
                return None
            facts = connections.facts(header.consumer_group, header.topic)
        return PullPlan(
            header.consumer_group,
            header.topic,
            header.queue_id,
            queue,
            codes=wanted.codes or None,
            counter=counter,
            facts=facts,
        )

    template = ANSWERS[ReadStatus.FOUND]
    return [
        Pulls(
            HeaderReader(int(request.code), header_layout(request)),
            state.store.log_tail,
            plan_for=plan_for,
            version=lambda: (topics.version, groups.version, state.config.permission),
            commit=state.offsets.commit,
            is_loaded=state.store.reading.residency.covers,
            segment_of=state.store.reading.segment_of,
            total=statistics.get_total,
            writer=ReplyWriter(template.line, template.binary()),
            **state.store.reading.limits_in_memory(),
            judge=express_permits(state, request),
        )
        for request in (PullMessage, LitePullMessage)
    ]
