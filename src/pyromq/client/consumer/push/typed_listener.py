"""Listeners of values instead of messages: bodies are read as a type, and those that do not fit go another way.

A body is read once, before its message waits for the listener: what does not fit is a call of its own, so that neither
the messages before it nor those behind it share its fate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from pyromq.client.application_code import check_takes, is_async, picture_of
from pyromq.client.consumer.push.listener import GiveUp, Listener, Listening
from pyromq.errors import IllegalMessage
from pyromq.json_body import json_reader
from pyromq.message import StoredMessage

ValueListener = Callable[[list[Any]], object]


def typed(
    listener: ValueListener, type_: type[Any], unfit: Listener | None, *, listening: Callable[[Listener], Listening]
) -> Listening:
    """Return how a listener of such values is called; messages that do not fit go to `unfit`, else to the dead letters.

    `listening` says how a listener of messages is called. Raises `UsageError` for a type that JSON cannot be read as.
    """
    read = json_reader(type_)
    check_takes(listener, "values", what=f"a listener of {picture_of(type_)}")
    fitting = listening(_of_messages(listener))
    others = None if unfit is None else listening(unfit)

    def sort(message: StoredMessage) -> Listening:
        try:
            message.value = read(message.body)
        except IllegalMessage as error:
            return others or listening(_giving_up(str(error)))  # each with its own reason
        return fitting

    return replace(fitting, sort=sort)


def _of_messages(listener: ValueListener) -> Listener:
    if not is_async(listener):
        return lambda messages: listener([message.value for message in messages])

    async def call(messages: list[StoredMessage]) -> object:
        return await cast("Awaitable[object]", listener([message.value for message in messages]))

    return call


def _giving_up(reason: str) -> Listener:
    def call(messages: list[StoredMessage]) -> None:
        raise GiveUp(reason)

    return call
