"""The tables of topics, groups and offsets, as parts of a broker: what is loaded first and written last."""

from __future__ import annotations

from pyromq.broker.part import Part
from pyromq.broker.shared_state import SharedState
from pyromq.errors import StoreNotWritable
from pyromq.logs import logger_of

logger = logger_of(__name__)


def consumer_offsets(state: SharedState) -> Part:
    """Written before the store is closed, whatever becomes of that, and again with what other parts note after it."""
    offsets = state.offsets
    return Part(load=offsets.load, unsaved=offsets.unsaved, close=offsets.persist, persist=offsets.persist)


def consumer_groups(state: SharedState) -> Part:
    groups = state.groups

    def persist() -> None:
        if (save := groups.unsaved()) is not None:
            save()

    return Part(load=groups.load, unsaved=groups.unsaved, close=groups.close, persist=persist)


def topics(state: SharedState) -> Part:
    return Part(load=state.topics.load, close=state.topics.close)


def built_in(state: SharedState) -> Part:
    """The topics and groups of a new folder, written when all else is loaded."""

    def write() -> None:
        try:
            state.topics.persist()
            state.groups.persist()
        except StoreNotWritable as error:  # a full disk: what is stored can be read all the same
            logger.warning("%s; nothing is lost by it, the next change is refused if that is still so", error)

    return Part(load=write)
