"""`pyromq member`: the state that group members report, and the connected producers."""

from __future__ import annotations

from typing import Any

import click

from pyromq import Admin, MessageQueue
from pyromq.cli.cluster_names import GROUP_NAME, TOPIC_NAME
from pyromq.cli.command_tree import Group
from pyromq.cli.commands.cluster_commands import answers_of
from pyromq.cli.connection_options import with_admin
from pyromq.cli.render import output_option, show_record, show_rows
from pyromq.clock import local_time, whole_ms
from pyromq.errors import MQError
from pyromq.remoting.bodies import ConsumerRunning, PulledQueue
from pyromq.remoting.codes import version_name


@click.group(cls=Group)
def member() -> None:
    """Inspect group members and producers; have a member consume a message."""


@member.command("list")
@click.argument("group", type=GROUP_NAME)
@with_admin
@output_option
def list_members(admin: Admin, group: str, output: str) -> int:
    """List the members of GROUP with their rates and problems.

    The exit code is 1 if there are problems.
    """
    online = {each.client_id: each for each in admin.consumer_connection(group).connections}
    states = admin.members.all_running(group)
    troubles = admin.members.troubles(states)
    rows = [
        {
            "client_id": client_id,
            "address": online[client_id].client_address if client_id in online else None,
            "language": online[client_id].language if client_id in online else None,
            "version": version_name(online[client_id].version) if client_id in online else None,
            **_figures(state),
        }
        for client_id, state in states.items()
    ]
    show_rows(rows, output)
    for trouble in troubles:
        click.echo(trouble, err=True)
    return 1 if troubles else 0


def _figures(state: ConsumerRunning | MQError) -> dict[str, Any]:
    """Return a member's figures, summed over topics; each figure is None if the member did not respond."""
    if isinstance(state, MQError):
        return dict.fromkeys(("started", "queues", "in_memory", "consumed_per_second", "failed_in_hour"))
    rates = state.rates.values()
    return {
        "started": local_time(whole_ms(state.properties.get("PROP_CONSUMER_START_TIMESTAMP"))),
        "queues": len(state.queues),
        "in_memory": sum(each.cached_count for each in state.queues.values()),
        "consumed_per_second": round(sum(each.consume_ok_tps for each in rates), 2),
        "failed_in_hour": sum(each.consume_failed_count for each in rates),
    }


@member.command()
@click.argument("group", type=GROUP_NAME)
@click.argument("client_id")
@click.option("--stacks", is_flag=True, help="Show the stacks of its threads.")
@with_admin
@output_option
def show(admin: Admin, group: str, client_id: str, stacks: bool, output: str) -> None:
    """Show a member of GROUP: settings, subscriptions, queues, rates."""
    state = admin.members.running(group, client_id, stacks=stacks)
    tables = {
        "subscriptions": [
            {"topic": each.topic, "expression": each.expression, "type": each.expression_type}
            for each in state.subscriptions
        ],
        "queues": [_queue_row(queue, each) for queue, each in sorted(state.queues.items())],
        "rates": [
            {
                "topic": topic,
                "pull_ms": round(each.pull_rt, 2),
                "pulled_per_second": round(each.pull_tps, 2),
                "consume_ms": round(each.consume_rt, 2),
                "consumed_per_second": round(each.consume_ok_tps, 2),
                "failed_per_second": round(each.consume_failed_tps, 2),
                "failed_in_hour": each.consume_failed_count,
            }
            for topic, each in sorted(state.rates.items())
        ],
    }
    if output == "json":
        show_record({"settings": state.properties, **tables, "stacks": state.stack}, output)
        return
    show_record(dict(sorted(state.properties.items())), output)
    for title, rows in tables.items():
        if rows:
            click.echo(f"\n{title}:")
            show_rows(rows, output)
    if state.stack:
        click.echo(f"\nstacks:\n{state.stack}")


def _queue_row(queue: MessageQueue, each: PulledQueue) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": each.commit_offset,
        "in_memory": each.cached_count,
        "locked": each.locked,
        "last_pull": local_time(each.last_pull_ms),
        "last_consume": local_time(each.last_consume_ms),
    }


@member.command()
@click.argument("group", type=GROUP_NAME)
@click.argument("topic", type=TOPIC_NAME)
@click.option("--client", "client_id", help="Show only this member.")
@with_admin
@output_option
def offsets(admin: Admin, group: str, topic: str, client_id: str | None, output: str) -> None:
    """Show the members' own offsets of GROUP in TOPIC, which they commit to brokers later."""
    found = admin.members.offsets(group, topic, client_id)
    rows = [
        {"client_id": client, "broker": queue.broker_name, "queue": queue.queue_id, "offset": offset}
        for client, queues in sorted(found.items())
        for queue, offset in sorted(queues.items())
    ]
    show_rows(rows, output, empty=f"no member of {group} has a queue of {topic} assigned")


@member.command()
@click.argument("group", type=GROUP_NAME)
@click.argument("client_id")
@click.argument("message_id")
@click.option("-t", "--topic", help="Topic of the message. [default: search all topics]")
@with_admin
@output_option
def consume(admin: Admin, group: str, client_id: str, message_id: str, topic: str | None, output: str) -> int:
    """Have a member of GROUP consume one message now, given by any of its ids. Offsets and retries do not change.

    The exit code is 1 if its listener fails.
    """
    result = admin.members.consume(group, client_id, message_id, topic=topic)
    record = {"result": result.result, "remark": result.remark, "ms": result.spent_ms, "order": result.order}
    show_record(record, output)
    return 0 if result.result in ("CR_SUCCESS", "CR_COMMIT") else 1


@member.command()
@click.argument("broker", required=False)
@with_admin
@output_option
def producers(admin: Admin, broker: str | None, output: str) -> None:
    """List the producers connected to BROKER (a name or HOST:PORT), or to all brokers."""
    found = answers_of(admin, broker, admin.members.producers).values()
    rows = {
        (group, each.client_id): {
            "group": group,
            "client_id": each.client_id,
            "address": each.remote_address.lstrip("/"),
            "language": each.language,
            "version": version_name(each.version),
            "last_heartbeat": local_time(each.last_update_ms),
        }
        for table in found
        for group, clients in table.items()
        for each in clients
    }
    show_rows([rows[key] for key in sorted(rows)], output, empty="no producer is connected")
