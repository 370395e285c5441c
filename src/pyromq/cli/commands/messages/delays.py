"""`pyromq delay`: messages that wait for a time of their own: which, how many; cancelling them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.cluster_names import TOPIC_NAME
from pyromq.cli.connecting import connections, namesrv_option
from pyromq.cli.render import as_json, one_line, output_option, show_rows
from pyromq.cli.times import read_moment
from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages, DelayedMessage
from pyromq.clock import local_time
from pyromq.errors import MQError
from pyromq.excerpt import escaped

_FOR_PROGRAMS = ("offset_message_id", "recall_handle", "topic")  # ids too long for a table; all rows have one topic


@click.group()
def delay() -> None:
    """Messages that wait for a time of their own: list, count, cancel.

    They were sent with `--delay` or `--deliver-at`, or by a program with a time of delivery. Messages in delay levels
    are not among them.
    """


@delay.command("list")
@click.argument("topic", type=TOPIC_NAME)
@click.option("--count", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most so many.")
@click.option("--begin", type=read_moment, metavar="TIME", help="Only what is due at this time or later.")
@namesrv_option
@output_option
def list_delayed(topic: str, count: int, begin: int | None, namesrv: str, output: str) -> None:
    """List what waits in TOPIC, in order of delivery. JSON has the handles that cancel."""
    found = asyncio.run(_waiting(namesrv, topic, begin_ms=begin or 0, most=count + 1))
    if not found:
        with Admin(namesrv, connections=connections()) as admin:
            admin.topic_route(topic)  # says so if there is none
    rows = [_record(message) for message in found[:count]]
    if output == "table":
        rows = [{name: value for name, value in row.items() if name not in _FOR_PROGRAMS} for row in rows]
    show_rows(rows, output, empty=f"nothing waits for its time in {topic}")
    if len(found) > count:
        click.echo("there are more; --count says how many to show", err=True)


@delay.command()
@click.argument("topic", type=TOPIC_NAME, required=False)
@namesrv_option
@output_option
def count(topic: str | None, namesrv: str, output: str) -> None:
    """Count what waits, by topic, or in one TOPIC."""
    counts = asyncio.run(_counts(namesrv))
    if topic is not None:
        counts = {topic: counts.get(topic, 0)}
    show_rows(
        [{"topic": name, "waiting": waiting} for name, waiting in counts.items()],
        output,
        empty="nothing waits for its time",
    )


@delay.command()
@click.argument("handles", metavar="HANDLE|ID...", nargs=-1, required=True)
@namesrv_option
@output_option
def cancel(handles: tuple[str, ...], namesrv: str, output: str) -> int:
    """Cancel messages by their ids, or by the handles that sending or `delay list -o json` told.

    JSON is one object a line. The exit code is 1 when one could not be cancelled.
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
    """Cancel one after the other, telling each outcome; return the exit code."""
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
                click.echo(f"error: {escaped(handle)} is not cancelled: {outcome['error']}", err=True)
            if output == "json":
                click.echo(as_json(outcome))
            elif outcome["error"] is None:
                click.echo(escaped(f"{outcome['message_id']}  cancelled"))
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
