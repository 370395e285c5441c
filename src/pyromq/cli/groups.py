"""`pyromq group`: create, delete, list and inspect consumer groups."""

from __future__ import annotations

from typing import Any

import click

from pyromq import Admin
from pyromq.cli.render import local_time, namesrv_option, output_option, show_record, show_rows
from pyromq.client.admin import QueueProgress
from pyromq.client.group_state import GroupMember, LockedQueue
from pyromq.names import is_system_group
from pyromq.remoting.bodies import GroupConfig


@click.group()
def group() -> None:
    """Create, delete, list and inspect consumer groups."""


@group.command()
@click.argument("name")
@click.option("--retries", type=click.IntRange(0), default=16, show_default=True, help="Attempts before dead letters.")
@click.option("--retry-queues", type=click.IntRange(0), default=1, show_default=True)
@click.option("--disabled", is_flag=True, help="Refuse the group's pulls.")
@click.option("--no-broadcast", is_flag=True, help="Refuse broadcasting members.")
@namesrv_option
def create(name: str, retries: int, retry_queues: int, disabled: bool, no_broadcast: bool, namesrv: str) -> None:
    """Create group NAME at all brokers, or change its settings."""
    config = GroupConfig(
        name=name,
        retry_max_times=retries,
        retry_queues=retry_queues,
        consume_enabled=not disabled,
        broadcast_enabled=not no_broadcast,
    )
    with Admin(namesrv) as admin:
        admin.create_group(config)
    click.echo(f"group {name} is saved at each broker")


@group.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
def delete(name: str, yes: bool, namesrv: str) -> None:
    """Delete group NAME with its offsets at all brokers."""
    if not yes:
        click.confirm(f"delete group {name} and its offsets?", abort=True, err=True)
    with Admin(namesrv) as admin:
        admin.delete_group(name)
    click.echo(f"group {name} is deleted")


@group.command("list")
@click.option("--all", "everything", is_flag=True, help="Built-in groups too.")
@namesrv_option
@output_option
def list_groups(everything: bool, namesrv: str, output: str) -> None:
    """List consumer groups."""
    with Admin(namesrv) as admin:
        configs = admin.groups()
    rows = [
        {"group": config.name, "enabled": config.consume_enabled, "attempts": config.retry_max_times}
        for config in configs
        if everything or not is_system_group(config.name)
    ]
    show_rows(rows, output, empty="no groups; --all shows the built-in ones")


@group.command()
@click.argument("name")
@namesrv_option
@output_option
def show(name: str, namesrv: str, output: str) -> None:
    """Show group NAME: its members, what they subscribe to, what is left of each queue, who has it locked."""
    with Admin(namesrv) as admin:
        state, progress = admin.group_state(name), admin.group_progress(name)
    record: dict[str, Any] = {
        "group": name,
        "online": len(state.members),
        "model": state.message_model,
        "type": state.consume_type,
        "subscriptions": state.subscriptions,
        "lag": sum(each.lag for each in progress),
    }
    tables = {
        "members": [_member_row(each) for each in state.members],
        "differences": [
            {"topic": topic, "subscription": expression or None, "members": members}
            for topic, by_expression in state.differences.items()
            for expression, members in by_expression.items()
        ],
        "queues": _queue_rows(progress, state.locks or []),
    }
    if output == "json":
        show_record(record | tables, output)
        return
    show_record(record, output)
    for title, rows in tables.items():
        if rows:
            click.echo(f"\n{_TITLES[title]}:")
            show_rows(rows, output)


_TITLES = {
    "members": "members",
    "differences": "members subscribe differently, and miss messages",
    "queues": "queues, with who has the lock and for how many seconds",
}


def _member_row(member: GroupMember) -> dict[str, Any]:
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "subscriptions": member.subscriptions,
    }


def _queue_rows(progress: list[QueueProgress], locks: list[LockedQueue]) -> list[dict[str, Any]]:
    """One row for each queue that the group has consumed from, or that a member has locked."""
    known = {each.queue: each for each in progress}
    holders = {each.queue: each for each in locks}
    rows = []
    for queue in sorted(known.keys() | holders.keys()):
        at, holder = known.get(queue), holders.get(queue)
        rows.append(
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "lag": at.lag if at else None,
                "last_consumed": local_time(at.last_ms) if at else None,
                "lock_holder": holder.client_id if holder else None,
                "lock_seconds": round(holder.age_seconds, 1) if holder else None,
            }
        )
    return rows


@group.command()
@click.argument("name")
@click.option("--topic", help="Only this topic.")
@namesrv_option
@output_option
def progress(name: str, topic: str | None, namesrv: str, output: str) -> None:
    """Show how far group NAME is, and what is left, queue by queue."""
    with Admin(namesrv) as admin:
        found = admin.group_progress(name, topic)
    rows = [
        {
            "topic": each.queue.topic,
            "broker": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "broker_offset": each.broker_offset,
            "consumer_offset": each.consumer_offset,
            "lag": each.lag,
            "last_consumed": local_time(each.last_ms),
        }
        for each in found
    ]
    show_rows(rows, output, empty=f"group {name} has consumed nothing")
