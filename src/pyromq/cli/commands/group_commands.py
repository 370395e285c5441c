"""`pyromq group`: create, alter, delete, list and inspect consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import Any

import click
from msgspec import UNSET

from pyromq import Admin
from pyromq.cli.cluster_names import GROUP_NAME, TOPIC_NAME, broker_option, cluster_option, place_text
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import connections, namesrv_option, with_admin
from pyromq.cli.progress_line import ProgressLine
from pyromq.cli.prompts import confirm, yes_option
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import as_json, one_line, output_option, show_record, show_rows
from pyromq.cli.times import read_duration
from pyromq.client.admin.cluster_groups import LockedQueue, OnlineMember
from pyromq.client.admin.cluster_offsets import QueueProgress
from pyromq.client.admin.overviews import GroupOverview
from pyromq.clock import local_time
from pyromq.errors import GroupNotFound, MQError
from pyromq.excerpt import escaped
from pyromq.names import check_group, is_system_group
from pyromq.remoting.bodies import GroupConfig

_JAVA_INT = WholeNumber(0, (1 << 31) - 1)  # range of numbers: Java's brokers and tools read an `int`
_QUEUES = WholeNumber(0, 65536)
_ORDERLY = "Give consumers of RocketMQ 5 the messages of each queue in order"


@click.group(cls=Group)
def group() -> None:
    """Create, alter, delete, list and inspect consumer groups."""


@group.command()
@click.argument("name", type=GROUP_NAME)
@click.option(
    "--retries", type=_JAVA_INT, default=16, show_default=True, help="Attempts before a message becomes a dead letter."
)
@click.option("--retry-queues", type=_QUEUES, default=1, show_default=True)
@click.option("--disabled", is_flag=True, help="Refuse the group's pulls.")
@click.option("--no-broadcast", is_flag=True, help="Refuse broadcasting consumers.")
@click.option("--orderly", is_flag=True, help=f"{_ORDERLY}.")
@cluster_option
@broker_option
@namesrv_option
def create(
    name: str,
    retries: int,
    retry_queues: int,
    disabled: bool,
    no_broadcast: bool,
    orderly: bool,
    namesrv: str,
    **place: Any,
) -> None:
    """Create group NAME on all brokers, or on some. `pyromq group alter` changes an existing group."""
    config = GroupConfig(
        name=name,
        retry_max_times=retries,
        retry_queues=retry_queues,
        consume_enabled=not disabled,
        broadcast_enabled=not no_broadcast,
        orderly=orderly or UNSET,
    )
    with Admin(namesrv, connections=connections()) as admin:
        admin.create_group(config, **place)
    click.echo(f"group {name} is created{place_text(**place) or ' on every broker'}")


@group.command()
@click.argument("name", type=GROUP_NAME)
@click.option("--retries", type=_JAVA_INT, help="Attempts before a message becomes a dead letter.")
@click.option("--retry-queues", type=_QUEUES)
@click.option("--enabled/--disabled", default=None, help="Answer or refuse the group's pulls.")
@click.option("--broadcast/--no-broadcast", default=None, help="Accept or refuse broadcasting consumers.")
@click.option("--orderly/--no-orderly", default=None, help=f"{_ORDERLY}, or in any order.")
@cluster_option
@broker_option
@namesrv_option
@output_option
def alter(name: str, namesrv: str, output: str, **options: Any) -> None:
    """Change the given settings of group NAME on all brokers, or on some."""
    if all(value is None for each, value in options.items() if each not in ("cluster", "broker")):
        raise click.UsageError("say what to change: --retries, --retry-queues, --enabled, --broadcast or --orderly")
    with Admin(namesrv, connections=connections()) as admin:
        before = admin.group_configs(name)
        admin.alter_group(name, **options)
        after = admin.group_configs(name)
    rows = [row for broker in after for row in _changes(broker, before.get(broker), after[broker])]
    show_rows(rows, output, empty=f"group {name} has these settings already")


def _changes(broker: str, old: GroupConfig | None, new: GroupConfig) -> Iterator[dict[str, Any]]:
    for setting, field in (
        ("retries", "retry_max_times"),
        ("retry_queues", "retry_queues"),
        ("enabled", "consume_enabled"),
        ("broadcast", "broadcast_enabled"),
        ("orderly", "is_orderly"),
    ):
        before, now = getattr(old, field, None), getattr(new, field)
        if before != now:
            yield {"broker": broker, "setting": setting, "before": before, "now": now}


@group.command()
@click.argument("name", type=GROUP_NAME)
@cluster_option
@broker_option
@yes_option
@with_admin
def delete(admin: Admin, name: str, yes: bool, **place: str | None) -> None:
    """Delete group NAME and its offsets on all brokers, or on some.

    The group's retry and dead-letter topics are deleted too, except with --broker.
    """
    check_known(admin, name)
    if not yes:
        confirm(f"delete group {name} and its offsets{place_text(**place)}?")
    admin.delete_group(name, **place)
    click.echo(f"group {name} is deleted{place_text(**place)}")


def check_known(admin: Admin, name: str) -> None:
    """Raise `GroupNotFound` if the group has neither settings, members nor offsets on any broker."""
    check_group(name)
    if not (admin.group_configs(name) or admin.group_state(name).members or admin.group_progress(name)):
        raise GroupNotFound(f"group {name} does not exist")


@group.command("list")
@click.option("--all", "everything", is_flag=True, help="Include built-in groups.")
@with_admin
@output_option
def list_groups(admin: Admin, everything: bool, output: str) -> None:
    """List consumer groups with members, lag and delay, the age of the oldest unconsumed message."""
    with ProgressLine("groups", beside_output=True) as progress:
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
@with_admin
@output_option
def settings(admin: Admin, name: str, output: str) -> None:
    """Show the settings of group NAME on each broker."""
    check_known(admin, name)
    configs = admin.group_configs(name)
    rows = [
        {
            "broker": broker,
            "enabled": each.consume_enabled,
            "broadcast": each.broadcast_enabled,
            "orderly": each.is_orderly,
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
@click.option(
    "--every", "seconds", type=read_duration, default="60s", show_default=True, help="Interval between checks."
)
@click.option("--rounds", type=WholeNumber(1), help="Stop after this many checks. [default: never]")
@click.option("--lag", "max_lag", type=WholeNumber(0), help="Show groups with a larger lag.")
@click.option("--delay", "max_delay", type=read_duration, help="Show groups with a longer delay.")
@namesrv_option
@output_option
def monitor(names: tuple[str, ...], seconds: float, rounds: int | None, namesrv: str, output: str, **most: Any) -> int:
    """Check groups repeatedly: lag, delay, members that do not consume or that subscribe differently.

    Without --lag and --delay all groups are shown, else those that exceed a limit. JSON is one object a line. The exit
    code is 1 if the last check found a problem, or if a broker was out of reach.
    """
    wrong = False
    with Admin(namesrv, connections=connections()) as admin:
        for number in count(1):
            try:
                checked = list(_checked_groups(admin, names))
                rows = [row for row in checked if _is_shown(row, **most)]
            except MQError as error:  # the next check may succeed
                click.echo(f"{datetime.now():%H:%M:%S} {one_line(error)}", err=True)
                rows, wrong = [], True
            else:
                is_limited = any(value is not None for value in most.values())
                absent = sorted({*names} - {row["group"] for row in checked})
                for name in absent:
                    click.echo(f"{datetime.now():%H:%M:%S} group {escaped(name)} does not exist", err=True)
                wrong = bool(absent) or any(row["troubles"] for row in rows) or (is_limited and bool(rows))
            for row in rows:
                click.echo(as_json({"time": datetime.now().astimezone(), **row}) if output == "json" else _line(row))
            if number == rounds:
                break
            time.sleep(seconds)
    return 1 if wrong else 0


def _checked_groups(admin: Admin, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for each in admin.overviews.groups():
        if each.group in names or not (names or is_system_group(each.group)):
            states = admin.members.all_running(each.group) if each.members else {}
            yield {**_overview_row(each), "troubles": admin.members.troubles(states)}


def _is_shown(row: dict[str, Any], *, max_lag: int | None, max_delay: float | None) -> bool:
    if max_lag is None and max_delay is None:
        return True
    is_behind = (max_lag is not None and row["lag"] > max_lag) or (
        max_delay is not None and row["delay_seconds"] > max_delay
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
@with_admin
@output_option
def show(admin: Admin, name: str, output: str) -> None:
    """Show group NAME: its members, their subscriptions, and lag and lock of each queue."""
    check_known(admin, name)
    state, progress = admin.group_state(name), admin.group_progress(name, partial=True)
    record: dict[str, Any] = {
        "group": name,
        "online": len(state.members),
        "model": state.message_model,
        "type": state.consume_type,
        "subscriptions": state.subscriptions,
        "lag": sum(each.lag for each in progress),
        "in_flight": sum(each.in_flight for each in progress),
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
    "differences": "members subscribe differently and miss messages",
    "queues": "queues, with the holder and age of the lock",
}


def _member_row(member: OnlineMember) -> dict[str, Any]:
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "subscriptions": member.subscriptions,
    }


def _queue_rows(progress: list[QueueProgress], locks: list[LockedQueue]) -> list[dict[str, Any]]:
    """Return a row for each queue that has a committed offset or a lock of the group."""
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
@click.option("-t", "--topic", type=TOPIC_NAME, help="Show only this topic.")
@with_admin
@output_option
def progress(admin: Admin, name: str, topic: str | None, output: str) -> None:
    """Show the offsets and lag of group NAME, by queue."""
    check_known(admin, name)
    found = admin.group_progress(name, topic, partial=True)
    rows = [
        {
            "topic": each.queue.topic,
            "broker": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "broker_offset": each.broker_offset,
            "consumer_offset": each.consumer_offset,
            "lag": each.lag,
            "in_flight": each.in_flight,
            "last_consumed": local_time(each.last_ms),
        }
        for each in found
    ]
    show_rows(rows, output, empty=f"group {name} has consumed nothing{f' of topic {topic}' if topic else ''}")
