"""`pyromq message`: one message by id, or those that carry a key."""

from __future__ import annotations

from typing import Any

import click

from pyromq import Admin
from pyromq.cli.commands.consume import as_record
from pyromq.cli.render import namesrv_option, output_option, show_record, show_rows
from pyromq.cli.times import read_time
from pyromq.message import StoredMessage


@click.group()
def message() -> None:
    """Find messages by id or key."""


@message.command()
@click.argument("message_id")
@click.option("--topic", help="Topic of a unique id (an offset id needs none).")
@namesrv_option
@output_option
def show(message_id: str, topic: str | None, namesrv: str, output: str) -> int:
    """Show one message: by the broker's offset id, or by the producer's unique id with --topic.

    The exit code is 1 when its body is damaged.
    """
    with Admin(namesrv) as admin:
        found = admin.view(message_id, topic=topic)
    show_record(_record(found), output)
    return 1 if found.is_damaged else 0


@message.command()
@click.argument("topic")
@click.option("--key", required=True, help="One of the message's keys.")
@click.option("--count", type=click.IntRange(1, 64), default=32, show_default=True, help="At most this many.")
@click.option("--begin", type=read_time, metavar="TIME", help="Stored from this time on.")
@click.option("--end", type=read_time, metavar="TIME", help="Stored up to this time.")
@namesrv_option
@output_option
def find(topic: str, key: str, count: int, begin: int | None, end: int | None, namesrv: str, output: str) -> None:
    """Find messages of TOPIC by key. Those whose body is damaged are marked."""
    with Admin(namesrv) as admin:
        found = admin.query_by_key(topic, key, count, begin_ms=begin or 0, end_ms=end)
    rows = [_record(each) for each in found]
    if output == "table":
        names = ("message_id", "store_time", "broker", "queue", "queue_offset", "tags", "keys", "damaged")
        rows = [{name: row[name] for name in names} for row in rows]
    show_rows(rows, output, empty=f"no message of {topic} has key {key!r}")


def _record(message: StoredMessage) -> dict[str, Any]:
    """Return a message as JSON knows it, and whether its body is damaged."""
    return {"damaged": message.is_damaged} | as_record(message)
