"""Sending as a part of a broker."""

from __future__ import annotations

from pyromq.broker.part import Part
from pyromq.broker.producing.express_sends import express_sends
from pyromq.broker.producing.reply_messages import Replying
from pyromq.broker.producing.sending import Sending
from pyromq.broker.shared_state import SharedState


def producing(state: SharedState) -> Part:
    sending = Sending(
        state.put_message,
        admission=state.admission,
        confirmation=state.confirmation,
        store=state.store,
        topics=state.topics,
        groups=state.groups,
        config=state.config,
        refusals=state.refusals,
    )
    replying = Replying(
        state.put_message,
        admission=state.admission,
        confirmation=state.confirmation,
        store=state.store,
        connections=state.connections,
        config=state.config,
        clock=state.clock,
    )
    return Part(answerers=[sending, replying], express=express_sends(state, sending))
