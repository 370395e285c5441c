"""Transactions of single messages as a part of a broker."""

from __future__ import annotations

from functools import partial

from pyromq.broker.part import Part, Step
from pyromq.broker.shared_state import SharedState
from pyromq.broker.transactions.end_transaction import Transacting
from pyromq.broker.transactions.transaction_checks import TransactionChecks


def transactions(state: SharedState) -> Part:
    half_messages = state.half_messages
    checks = TransactionChecks(
        state.store,
        half_messages,
        topics=state.topics,
        connections=state.connections,
        cold_reads=state.cold_reads,
        permissions=state.permissions,
        config=state.config,
        clock=state.clock,
    )
    return Part(
        answerers=[
            Transacting(
                state.put_message,
                half_messages,
                confirmation=state.confirmation,
                store=state.store,
                cold_reads=state.cold_reads,
                long_answers=state.long_answers,
                permissions=state.permissions,
            )
        ],
        load=half_messages.load,
        mend=half_messages.mend,
        steps=[Step(checks.step, checks.alarm)],
        unsaved=half_messages.note_progress,  # in the table of offsets
        log_needed_from=lambda: half_messages.log_needed_from,
        persist=partial(half_messages.note_progress, closed=True),
    )
