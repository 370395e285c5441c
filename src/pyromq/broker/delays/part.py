"""Messages that wait as parts of a broker: by level, and for a time of their own."""

from __future__ import annotations

from pyromq.broker.delays.timer_answers import ListingTimers, Recalling
from pyromq.broker.part import Part, Step
from pyromq.broker.shared_state import SharedState


def delay_levels(state: SharedState) -> Part:
    levels = state.delay_levels
    return Part(
        load=levels.load,
        steps=[Step(levels.deliver, levels.alarm)],
        unsaved=levels.unsaved,
        log_needed_from=lambda: levels.log_needed_from,
        persist=levels.persist,
    )


def timers(state: SharedState) -> Part:
    timers = state.timers
    listing = ListingTimers(
        timers,
        state.long_answers,
        cold_reads=state.cold_reads,
        broker_name=state.config.name,
        clock=state.clock,
    )
    return Part(
        answerers=[Recalling(state), listing],
        load=timers.load,
        steps=[Step(timers.step, timers.alarm)],
        unsaved=timers.unsaved,
        log_needed_from=lambda: timers.filed.log_needed_from,
        persist=timers.persist,
    )
