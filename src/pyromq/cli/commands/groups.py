"""`pyromq group`: create, alter, delete, list and inspect consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.asking import confirm
from pyromq.cli.cluster_names import GROUP_NAME
from pyromq.cli.connecting import connections, namesrv_option
from pyromq.cli.progress import Progress
from pyromq.cli.render import as_json, one_line, output_option, show_record, show_rows
from pyromq.cli.times import read_duration
from pyromq.client.admin.group_state import GroupMember, LockedQueue
from pyromq.client.admin.offsets import QueueProgress
from pyromq.client.admin.overviews import GroupOverview
from pyromq.clock import local_time
from pyromq.errors import GroupNotFound, MQError
from pyromq.excerpt import escaped
from pyromq.names import check_group, is_system_group
from pyromq.remoting.bodies import GroupConfig

_JAVA_INT = click.IntRange(0, (1 << 31) - 1)  # what Java's brokers and tools can read
_QUEUES = click.IntRange(0, 65536)


@click.group()
def group() -> None:
    """Create, alter, delete, list and inspect consumer groups."""


@group.command()
@click.argument("name", type=GROUP_NAME)
@click.option("--retries", type=_JAVA_INT, default=16, show_default=True, help="Attempts before dead letters.")
@click.option("--retry-queues", type=_QUEUES, default=1, show_default=True)
@click.option("--disabled", is_flag=True, help="Refuse the group's pulls.")
@click.option("--no-broadcast", is_flag=True, help="Refuse broadcasting members.")
@namesrv_option
def create(name: str, retries: int, retry_queues: int, disabled: bool, no_broadcast: bool, namesrv: str) -> None:
    """Create group NAME at all brokers. One that exists is changed with `pyromq group alter`."""
    config = GroupConfig(
        name=name,
        retry_max_times=retries,
        retry_queues=retry_queues,
        consume_enabled=not disabled,
        broadcast_enabled=not no_broadcast,
    )
    with Admin(namesrv, connections=connections()) as admin:
        admin.create_group(config)
    click.echo(f"group {name} is created at each broker")


@group.command()
@click.argument("name", type=GROUP_NAME)
@click.option("--retries", type=_JAVA_INT, help="Attempts before dead letters.")
@click.option("--retry-queues", type=_QUEUES)
@click.option("--enabled/--disabled", default=None, help="Answer or refuse the group's pulls.")
@click.option("--broadcast/--no-broadcast", default=None, help="Take or refuse broadcasting members.")
@namesrv_option
def alter(name: str, namesrv: str, **options: int | bool | None) -> None:
    """Change settings of group NAME at all brokers: those that are given. The others stay as they are."""
    if all(value is None for value in options.values()):
        raise click.UsageError("say what to change: --retries, --retry-queues, --enabled or --broadcast")
    with Admin(namesrv, connections=connections()) as admin:
        before = admin.group_configs(name)
        admin.alter_group(name, **options)  # type: ignore[arg-type]  # click's options by name
        after = admin.group_configs(name)
    rows = [row for broker in after for row in _changes(broker, before.get(broker), after[broker])]
    show_rows(rows, "table", empty=f"group {name} has these settings already")


def _changes(broker: str, old: GroupConfig | None, new: GroupConfig) -> Iterator[dict[str, Any]]:
    for setting, field in (
        ("retries", "retry_max_times"),
        ("retry_queues", "retry_queues"),
        ("enabled", "consume_enabled"),
        ("broadcast", "broadcast_enabled"),
    ):
        before, now = getattr(old, field, None), getattr(new, field)
        if before != now:
            yield {"broker": broker, "setting": setting, "before": before, "now": now}


@group.command()
@click.argument("name", type=GROUP_NAME)
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
def delete(name: str, yes: bool, namesrv: str) -> None:
    """Delete group NAME with its offsets at all brokers."""
    with Admin(namesrv, connections=connections()) as admin:
        check_known(admin, name)
        if not yes:
            confirm(f"delete group {name} and its offsets?")
        admin.delete_group(name)
    click.echo(f"group {name} is deleted")


def check_known(admin: Admin, name: str) -> None:
    """Raise `GroupNotFound` for a group that no broker has: neither settings, nor members, nor offsets."""
    check_group(name)
    if not (admin.group_configs(name) or admin.group_state(name).members or admin.group_progress(name)):
        raise GroupNotFound(f"group {name} does not exist")


@group.command("list")
@click.option("--all", "everything", is_flag=True, help="Built-in groups too.")
@namesrv_option
@output_option
def list_groups(everything: bool, namesrv: str, output: str) -> None:
    """List consumer groups: members, lag, and how old the oldest message is that is not consumed."""
    with Admin(namesrv, connections=connections()) as admin, Progress("groups", beside_output=True) as progress:
        found = admin.overviews.groups(shown=progress.show)
    rows = [_overview_row(each) for each in found if everything or not is_system_group(each.group)]
    show_rows(rows, output, empty="no groups; --all shows the built-in ones")


def _overview_row(each: GroupOverview) -> dict[str, Any]:
    return {
        "group": each.group,
        "members": each.members,
        "lag": each.lag,
        "delay_seconds": round(each.delay_seconds, 1),
    }


@group.command()
@click.argument("name", type=GROUP_NAME)
@namesrv_option
@output_option
def settings(name: str, namesrv: str, output: str) -> None:
    """Show the settings of group NAME at each broker."""
    with Admin(namesrv, connections=connections()) as admin:
        check_known(admin, name)
        configs = admin.group_configs(name)
    rows = [
        {
            "broker": broker,
            "enabled": each.consume_enabled,
            "broadcast": each.broadcast_enabled,
            "attempts": each.retry_max_times,
            "retry_queues": each.retry_queues,
            "from_min": each.consume_from_min_enabled,
            "notify_changes": each.notify_changes,
            "read_from": each.broker_id,
            "read_from_when_slow": each.slow_broker_id,
        }
        for broker, each in configs.items()
    ]
    show_rows(rows, output, empty=f"no broker has settings of group {name}")


@group.command()
@click.argument("names", type=GROUP_NAME, nargs=-1, metavar="[GROUP...]")
@click.option("--every", "seconds", type=read_duration, default="60s", show_default=True, help="How often to look.")
@click.option("--rounds", type=click.IntRange(1), help="End after so many looks. [default: never]")
@click.option("--lag", "most_lag", type=click.IntRange(0), help="Tell of groups with a lag beyond this.")
@click.option("--delay", "most_delay", type=read_duration, help="Tell of groups with an older message not consumed.")
@namesrv_option
@output_option
def monitor(names: tuple[str, ...], seconds: float, rounds: int | None, namesrv: str, output: str, **most: Any) -> int:
    """Look at groups again and again: lag, delay, members that stand still or subscribe differently.

    Without --lag and --delay all groups are shown, else those beyond. With -o json a line for each group and look.
    The exit code is 1 when something was wrong at the last look.
    """
    wrong = False
    with Admin(namesrv, connections=connections()) as admin:
        for number in count(1):
            try:
                looked_at = list(_looked_at(admin, names))
                rows = [row for row in looked_at if _is_told(row, **most)]
            except MQError as error:  # brokers come back
                click.echo(f"{datetime.now():%H:%M:%S} {one_line(error)}", err=True)
                rows, wrong = [], True
            else:
                is_limited = any(value is not None for value in most.values())
                absent = sorted({*names} - {row["group"] for row in looked_at})
                for name in absent:
                    click.echo(f"{datetime.now():%H:%M:%S} group {escaped(name)} does not exist", err=True)
                wrong = bool(absent) or any(row["troubles"] for row in rows) or (is_limited and bool(rows))
            for row in rows:
                click.echo(as_json({"time": datetime.now().astimezone(), **row}) if output == "json" else _line(row))
            if number == rounds:
                break
            time.sleep(seconds)
    return 1 if wrong else 0


def _looked_at(admin: Admin, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for each in admin.overviews.groups():
        if each.group in names or not (names or is_system_group(each.group)):
            states = admin.members.all_running(each.group) if each.members else {}
            yield {**_overview_row(each), "troubles": admin.members.troubles(states)}


def _is_told(row: dict[str, Any], *, most_lag: int | None, most_delay: float | None) -> bool:
    if most_lag is None and most_delay is None:
        return True
    is_behind = (most_lag is not None and row["lag"] > most_lag) or (
        most_delay is not None and row["delay_seconds"] > most_delay
    )
    return is_behind or bool(row["troubles"])


def _line(row: dict[str, Any]) -> str:
    now = f"{datetime.now():%H:%M:%S}"
    figures = f"{row['members']} online, lag {row['lag']}, delay {row['delay_seconds']} s"
    return "\n".join(
        [f"{now} {row['group']}: {figures}", *(f"{now} {row['group']}: {each}" for each in row["troubles"])]
    )


@group.command()
@click.argument("name", type=GROUP_NAME)
@namesrv_option
@output_option
def show(name: str, namesrv: str, output: str) -> None:
    """Show group NAME: its members, what they subscribe to, what is left of each queue, who has it locked."""
    with Admin(namesrv, connections=connections()) as admin:
        check_known(admin, name)
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
@click.argument("name", type=GROUP_NAME)
@click.option("--topic", help="Only this topic.")
@namesrv_option
@output_option
def progress(name: str, topic: str | None, namesrv: str, output: str) -> None:
    """Show how far group NAME is, and what is left, queue by queue."""
    with Admin(namesrv, connections=connections()) as admin:
        check_known(admin, name)
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
