"""`pyromq offset`: a group's offsets: show, set, reset to a time."""

from __future__ import annotations

import click

from pyromq.cli.render import namesrv_option, output_option, show_rows
from pyromq.cli.times import TimeType
from pyromq.client.blocking import Admin
from pyromq.message import MessageQueue


@click.group()
def offset() -> None:
    """Show, set and reset a group's offsets."""


@offset.command()
@click.argument("topic")
@namesrv_option
@output_option
def show(topic: str, namesrv: str, output: str) -> None:
    """Show the first and the next offset of each queue of TOPIC."""
    with Admin(namesrv) as admin:
        statuses = admin.topic_status(topic)
    rows = [
        {
            "broker": status.queue.broker_name,
            "queue": status.queue.queue_id,
            "min_offset": status.min_offset,
            "max_offset": status.max_offset,
        }
        for status in statuses
    ]
    show_rows(rows, output)


@offset.command("set")
@click.argument("group")
@click.argument("topic")
@click.argument("broker")
@click.argument("queue_id", type=click.IntRange(0))
@click.argument("value", type=click.IntRange(0))
@namesrv_option
def set_offset(group: str, topic: str, broker: str, queue_id: int, value: int, namesrv: str) -> None:
    """Set GROUP's offset of one queue."""
    with Admin(namesrv) as admin:
        admin.commit_offset(group, MessageQueue(topic, broker, queue_id), value)
    click.echo(f"{group} continues {topic} at {broker} queue {queue_id} with offset {value}")


@offset.command()
@click.argument("group")
@click.argument("topic")
@click.option("--to", "time_ms", type=TimeType(), required=True, metavar="TIME", help="10m (ago), now, or a date.")
@namesrv_option
@output_option
def reset(group: str, topic: str, time_ms: int, namesrv: str, output: str) -> None:
    """Let GROUP read TOPIC again from a time on."""
    with Admin(namesrv) as admin:
        offsets = admin.reset_offset(group, topic, time_ms)
    rows = [
        {"broker": queue.broker_name, "queue": queue.queue_id, "offset": value}
        for queue, value in sorted(offsets.items())
    ]
    show_rows(rows, output)
