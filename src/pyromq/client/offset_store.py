"""The interface of an application's own offset store, for example in the database that holds its results.

Source: RocketMQ 4.9.8, OffsetStore; its other methods are done by the consumers here.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Protocol

from pyromq.client.application_code import check_takes, picture_of
from pyromq.errors import UsageError
from pyromq.message import MessageQueue


class OffsetStore(Protocol):
    """Keeps a group's consumed offsets instead of the brokers; see docs/clients.md.

    The methods are plain functions and may block. A consumer calls them in changing threads, one call at a time; two
    consumers with the same store call it in parallel. Names of groups and topics include the namespace. An error is
    logged, and the call is repeated later. A call longer than `ConsumerConfig.timeout` counts as failed; the next call
    begins after its end.
    """

    def load(self, group: str, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        """Return the saved offsets of a group in these queues, without queues that have none.

        Called each time a queue is assigned: another member may have saved since.
        """

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Save a group's offsets of some queues, durably when this returns. Offsets of other queues stay.

        An offset may be lower than the previous one, for example after an administrator's reset.
        """


def check_offset_store(store: object) -> None:
    """Raise `UsageError` unless both methods can be called as those of an `OffsetStore`."""
    for name, arguments in (("load", ("group", "queues")), ("save", ("group", "offsets"))):
        function = getattr(store, name, None)
        if not callable(function):
            raise UsageError(f"offset_store={store!r:.80} has no method {name}; see OffsetStore")
        check_takes(function, *arguments, what=f"{name} of offset_store={picture_of(store)}")
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"offset_store={store!r:.80}: {name} is async; it must be a plain function")
