"""Offsets that an application keeps itself, as in the database that has its results: what it has to be able to do.

Source: RocketMQ 4.9.8, OffsetStore. What that does beside loading and saving, consumers do here for every store.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Protocol

from pyromq.client.application_code import check_takes, picture_of
from pyromq.errors import UsageError
from pyromq.message import MessageQueue


class OffsetStore(Protocol):
    """Keeps how far a group has consumed its queues, where brokers are not to; see docs/clients.md.

    Its functions are plain ones, and may block: a consumer calls them in a thread, not always the same one, and never
    two at a time. Two consumers that are given the same object call it side by side. Names of groups and topics are
    those that brokers know, with the namespace. Whatever is raised is logged, and the call made again later. Calls that
    take longer than `ConsumerConfig.timeout` count as failed; the next begins when they end.
    """

    def load(self, group: str, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        """Return where a group goes on in these queues: offsets that were saved; without those that were not.

        Asked when a queue is taken, and each time: another member may have saved since.
        """

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep where a group goes on in some queues; for good when this returns. What is kept of others stays.

        An offset may be lower than the one before, as when an administrator has moved the group back.
        """


def check_offset_store(store: object) -> None:
    """Raise `UsageError` for what could not be called as an `OffsetStore`."""
    for name, arguments in (("load", ("group", "queues")), ("save", ("group", "offsets"))):
        function = getattr(store, name, None)
        if not callable(function):
            raise UsageError(f"offset_store={store!r:.80} has no method {name}; see OffsetStore")
        check_takes(function, *arguments, what=f"{name} of offset_store={picture_of(store)}")
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"offset_store={store!r:.80}: {name} is async; it must be a plain function")
