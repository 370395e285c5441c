"""`pyromq delay`: lists, counts and cancels scheduled messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.cluster_names import TOPIC_NAME
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import connections, namesrv_option
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import one_line, output_option, show_outcome, show_rows
from pyromq.cli.times import read_moment
from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages, DelayedMessage
from pyromq.clock import local_time
from pyromq.errors import MQError

_JSON_ONLY = ("offset_message_id", "recall_handle", "topic")  # ids too long for a table; the topic is that of all rows


@click.group(cls=Group)
def delay() -> None:
    """List, count and cancel scheduled messages.

    A scheduled message was sent with a delivery time: with `--delay`, `--deliver-at`, or by a program. Messages in
    delay levels are not included.
    """


@delay.command("list")
@click.argument("topic", type=TOPIC_NAME)
@click.option("-c", "--count", type=WholeNumber(1), default=100, show_default=True, help="Show at most N.")
@click.option("--begin", type=read_moment, metavar="TIME", help="Only messages due at this time or later.")
@namesrv_option
@output_option
def list_delayed(topic: str, count: int, begin: int | None, namesrv: str, output: str) -> None:
    """List the scheduled messages of TOPIC by delivery time. JSON includes the recall handles, for `delay cancel`."""
    found = asyncio.run(_waiting(namesrv, topic, begin_ms=begin or 0, most=count + 1))
    if not found:
        with Admin(namesrv, connections=connections()) as admin:
            admin.topic_route(topic)  # raises for an unknown topic
    rows = [_record(message) for message in found[:count]]
    if output == "table":
        rows = [{name: value for name, value in row.items() if name not in _JSON_ONLY} for row in rows]
    show_rows(rows, output, empty=f"topic {topic} has no scheduled messages")
    if len(found) > count:
        click.echo("there are more; --count N shows up to N", err=True)


@delay.command()
@click.argument("topic", type=TOPIC_NAME, required=False)
@namesrv_option
@output_option
def count(topic: str | None, namesrv: str, output: str) -> None:
    """Count the scheduled messages of TOPIC, or of all topics."""
    counts = asyncio.run(_counts(namesrv))
    if topic is not None:
        counts = {topic: counts.get(topic, 0)}
    show_rows(
        [{"topic": name, "waiting": waiting} for name, waiting in counts.items()],
        output,
        empty="there are no scheduled messages",
    )


@delay.command()
@click.argument("handles", metavar="HANDLE|ID...", nargs=-1, required=True)
@namesrv_option
@output_option
def cancel(handles: tuple[str, ...], namesrv: str, output: str) -> int:
    """Cancel scheduled messages, given by id or by the recall handle from `send` or `delay list -o json`.

    JSON is one object a line. The exit code is 1 if a message could not be cancelled.
    """
    return asyncio.run(_cancel(namesrv, handles, output=output))


async def _waiting(namesrv: str, topic: str, *, begin_ms: int, most: int) -> list[DelayedMessage]:
    found: list[DelayedMessage] = []
    async with (
        AsyncDelayedMessages(namesrv, connections=connections()) as delayed_messages,
        aclosing(delayed_messages.waiting(topic, begin_ms=begin_ms)) as waiting,
    ):
        async for message in waiting:
            found.append(message)
            if len(found) == most:
                break
    return found


async def _counts(namesrv: str) -> dict[str, int]:
    async with AsyncDelayedMessages(namesrv, connections=connections()) as delayed_messages:
        return await delayed_messages.counts()


async def _cancel(namesrv: str, handles: Sequence[str], *, output: str) -> int:
    """Cancel the messages in order and print each outcome; return the exit code."""
    failed = False
    async with AsyncDelayedMessages(namesrv, connections=connections()) as delayed_messages:
        for handle in handles:
            outcome: dict[str, Any] = {
                "recall_handle": handle,
                "message_id": None,
                "outcome": "cancelled",
                "error": None,
            }
            try:
                outcome["message_id"] = await delayed_messages.cancel(handle)
            except MQError as error:
                failed = True
                outcome |= {"outcome": "failed", "error": one_line(error)}
            done = f"{outcome['message_id']}  cancelled"
            show_outcome(outcome, output, done=done, refused=f"{handle} is not cancelled")
    return 1 if failed else 0


def _record(message: DelayedMessage) -> dict[str, Any]:
    return {
        "due": local_time(message.due_ms),
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "sent": local_time(message.sent_ms),
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "size": message.size,
        "tags": message.tags,
        "keys": message.keys,
        "recall_handle": message.recall_handle,
    }
