"""Who is connected, as a part of a broker."""

from __future__ import annotations

from pyromq.broker.members.heartbeating import Heartbeating
from pyromq.broker.part import Part, periodic
from pyromq.broker.shared_state import SharedState

EXPIRE_CLIENTS_SECONDS = 10.0


def members(state: SharedState) -> Part:
    heartbeating = Heartbeating(
        state.connections, state.groups, topics=state.topics, config=state.config, clock=state.clock
    )
    return Part(answerers=[heartbeating], steps=[periodic(EXPIRE_CLIENTS_SECONDS, state.connections.expire)])
