"""Who is connected, as a part of a broker."""

from __future__ import annotations

from pyromq.broker.members.heartbeating import Heartbeating
from pyromq.broker.part import Part, Step, periodic
from pyromq.broker.shared_state import SharedState

EXPIRE_CLIENTS_SECONDS = 10.0


def members(state: SharedState) -> Part:
    heartbeating = Heartbeating(
        state.connections,
        state.groups,
        topics=state.topics,
        config=state.config,
        clock=state.clock,
        long_answers=state.long_answers,
    )
    connections = state.connections
    steps = [
        periodic(EXPIRE_CLIENTS_SECONDS, connections.expire),
        Step(connections.step, connections.alarm),
    ]
    return Part(answerers=[heartbeating], steps=steps)
