"""Batch transactions as a part of a broker."""

from __future__ import annotations

from functools import partial

from pyromq.broker.batches.batch_answers import BatchTransacting
from pyromq.broker.part import Part, Step
from pyromq.broker.shared_state import SharedState


def batch_transactions(state: SharedState) -> Part:
    batches = state.batches
    return Part(
        answerers=[
            BatchTransacting(
                batches,
                admission=state.admission,
                confirmation=state.confirmation,
                config=state.config,
                long_answers=state.long_answers,
                permissions=state.permissions,
            )
        ],
        load=batches.load,
        steps=[Step(batches.step, batches.alarm)],
        unsaved=batches.note_progress,  # in the table of offsets
        log_needed_from=lambda: batches.log_needed_from,
        persist=partial(batches.note_progress, closed=True),
    )
