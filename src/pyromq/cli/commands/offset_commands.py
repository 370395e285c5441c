"""`pyromq offset`: first and next offsets of queues; sets, resets and copies a group's offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.cluster_names import GROUP_NAME, TOPIC_NAME
from pyromq.cli.command_tree import Group
from pyromq.cli.commands.group_commands import check_known
from pyromq.cli.connection_options import connections, namesrv_option, with_admin
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import output_option, show_rows
from pyromq.cli.times import END, Start, read_place
from pyromq.errors import UsageError
from pyromq.message import MessageQueue


@click.group(cls=Group)
def offset() -> None:
    """Show, set, reset and copy offsets."""


@offset.command()
@click.argument("topic", type=TOPIC_NAME)
@with_admin
@output_option
def show(admin: Admin, topic: str, output: str) -> None:
    """Show the first and the next offset of each queue of TOPIC."""
    statuses = admin.topic_status(topic, partial=True)
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
@click.argument("group", type=GROUP_NAME)
@click.argument("topic", type=TOPIC_NAME)
@click.argument("broker")
@click.argument("queue_id", type=WholeNumber(0))
@click.argument("value", metavar="OFFSET", type=WholeNumber(0))
@with_admin
def set_offset(admin: Admin, group: str, topic: str, broker: str, queue_id: int, value: int) -> None:
    """Set GROUP's offset of one queue of TOPIC, given by broker name and queue id.

    Running members ignore the change: stop them first, or use `pyromq offset reset`.
    """
    check_known(admin, group)
    statuses = {status.queue: status for status in admin.topic_status(topic)}
    queue = MessageQueue(topic, broker, queue_id)
    if queue not in statuses:
        known = ", ".join(f"{each.broker_name} {each.queue_id}" for each in statuses)
        raise UsageError(f"topic {topic} has no queue {broker} {queue_id}; it has {known}")
    least, end = statuses[queue].min_offset, statuses[queue].max_offset
    if not least <= value <= end:
        raise UsageError(f"offset {value} is outside queue {queue_id} of {broker}, which has {least} to {end}")
    admin.commit_offset(group, queue, value)
    click.echo(f"group {group} is set to offset {value} of {topic}, {broker} queue {queue_id}")


@offset.command()
@click.argument("group", type=GROUP_NAME)
@click.argument("topic", type=TOPIC_NAME)
@click.option(
    "--to",
    "start",
    type=read_place,
    required=True,
    metavar="beginning|end|TIME",
    help="New position; a time is 10m (ago) or 2026-01-31 12:00.",
)
@namesrv_option
@output_option
def reset(group: str, topic: str, start: Start, namesrv: str, output: str) -> None:
    """Reset GROUP's offsets of TOPIC to the beginning, the end or a time, and show the new offsets.

    Running members continue there at once.
    """
    time_ms = None if start == END else start.time_ms or 0
    with Admin(namesrv, connections=connections()) as admin:
        check_known(admin, group)
        offsets = admin.reset_offset(group, topic, time_ms)
    show_rows(_rows(offsets), output, empty=f"no member of {group} has a queue of {topic}; nothing is changed")


@offset.command()
@click.argument("source")
@click.argument("destination")
@click.argument("topic", type=TOPIC_NAME)
@with_admin
@output_option
def clone(admin: Admin, source: str, destination: str, topic: str, output: str) -> None:
    """Copy the offsets of TOPIC from group SOURCE to group DESTINATION. Running members ignore the change."""
    check_known(admin, source)
    offsets = admin.clone_offsets(source, destination, topic)
    show_rows(_rows(offsets), output, empty=f"group {source} has consumed nothing of {topic}; nothing is changed")


@offset.command()
@click.argument("topic", type=TOPIC_NAME)
@click.argument("broker")
@click.argument("queue_id", type=WholeNumber(0))
@click.argument("begin", metavar="OFFSET", type=WholeNumber(0))
@click.option("-c", "--count", type=WholeNumber(1), default=10, show_default=True, help="Show at most this many.")
@click.option("-g", "--group", help="Mark the entries that match this group's subscription.")
@with_admin
@output_option
def entries(
    admin: Admin, topic: str, broker: str, queue_id: int, begin: int, count: int, group: str | None, output: str
) -> None:
    """Show consume-queue entries of one queue of TOPIC, starting at OFFSET."""
    found = admin.queue_entries(MessageQueue(topic, broker, queue_id), begin, count, group=group)
    rows = [
        {
            "offset": begin + number,
            "log_offset": each.log_offset,
            "size": each.size,
            "tags_code": each.tags_code,
            "accepted": each.accepted if group else None,
        }
        for number, each in enumerate(found.entries)
    ]
    show_rows(rows, output, empty=f"no entries from {begin}; the queue has {found.min_index} to {found.max_index}")


def _rows(offsets: Mapping[MessageQueue, int]) -> list[dict[str, Any]]:
    """Return a row for each queue with its new offset."""
    return [
        {"broker": queue.broker_name, "queue": queue.queue_id, "offset": value}
        for queue, value in sorted(offsets.items())
    ]
