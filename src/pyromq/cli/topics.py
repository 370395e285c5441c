"""`pyromq topic`: create, delete, list and inspect topics."""

from __future__ import annotations

from typing import Any

import click

from pyromq import Admin
from pyromq.cli.render import local_time, namesrv_option, output_option, permission_text, show_record, show_rows
from pyromq.names import is_system_topic
from pyromq.remoting.bodies import Connection


@click.group()
def topic() -> None:
    """Create, delete, list and inspect topics."""


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Queues at each broker.")
@click.option("--read-queues", type=click.IntRange(0), help="Queues to read from. [default: --queues]")
@click.option("--write-queues", type=click.IntRange(0), help="Queues to write to. [default: --queues]")
@click.option("--permission", type=click.Choice(["r", "w", "rw"]), default="rw", show_default=True)
@click.option("--order", is_flag=True, help="Fixed queue order: a dead broker's queues are not replaced by others.")
@click.option("--cluster", help="Only at the brokers of this cluster.")
@click.option("--broker", help="Only at this broker.")
@namesrv_option
def create(
    name: str, queues: int, read_queues: int | None, write_queues: int | None, namesrv: str, **where: str | bool | None
) -> None:
    """Create topic NAME, or change its settings."""
    with Admin(namesrv) as admin:
        admin.create_topic(name, queues, read_queues=read_queues, write_queues=write_queues, **where)  # type: ignore[arg-type]  # click's options by name
    click.echo(f"topic {name} is saved")


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
def delete(name: str, yes: bool, namesrv: str) -> None:
    """Delete topic NAME and its queues at all brokers."""
    if not yes:
        click.confirm(f"delete topic {name} and all its messages?", abort=True, err=True)
    with Admin(namesrv) as admin:
        admin.delete_topic(name)
    click.echo(f"topic {name} is deleted")


@topic.command("list")
@click.option("--all", "everything", is_flag=True, help="Built-in, retry and dead-letter topics too.")
@namesrv_option
@output_option
def list_topics(everything: bool, namesrv: str, output: str) -> None:
    """List topics."""
    with Admin(namesrv) as admin:
        names = admin.topics()
        table = admin.cluster()
    if not everything:
        built_in = {*table.brokers, *table.clusters, *(f"{name}_REPLY_TOPIC" for name in table.clusters)}
        names = [name for name in names if name not in built_in and not is_system_topic(name) and name[0] != "%"]
    show_rows([{"topic": name} for name in names], output, empty="no topics; --all shows the built-in ones")


@topic.command()
@click.argument("name")
@namesrv_option
@output_option
def route(name: str, namesrv: str, output: str) -> None:
    """Show which brokers hold topic NAME."""
    with Admin(namesrv) as admin:
        found = admin.topic_route(name)
    addresses = {broker.broker_name: broker.addresses for broker in found.brokers}
    rows = [
        {
            "broker": queues.broker_name,
            "addresses": addresses.get(queues.broker_name, {}),
            "read_queues": queues.read_queues,
            "write_queues": queues.write_queues,
            "permission": permission_text(queues.permission),
        }
        for queues in found.queues
    ]
    show_rows(rows, output)


@topic.command()
@click.argument("name")
@namesrv_option
@output_option
def stats(name: str, namesrv: str, output: str) -> None:
    """Show the queues of topic NAME: offsets, messages, last write."""
    with Admin(namesrv) as admin:
        statuses = admin.topic_status(name)
    rows = [
        {
            "broker": status.queue.broker_name,
            "queue": status.queue.queue_id,
            "min_offset": status.min_offset,
            "max_offset": status.max_offset,
            "messages": status.max_offset - status.min_offset,
            "last_stored": local_time(status.last_store_ms),
        }
        for status in statuses
    ]
    show_rows(rows, output)


@topic.command()
@click.argument("name")
@namesrv_option
@output_option
def show(name: str, namesrv: str, output: str) -> None:
    """Show the settings of topic NAME and how many messages it holds."""
    with Admin(namesrv) as admin:
        config = admin.topic_config(name)
        statuses = admin.topic_status(name)
    record = {
        "topic": name,
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "permission": permission_text(config.permission),
        "order": config.order,
        "brokers": sorted({status.queue.broker_name for status in statuses}),
        "messages": sum(status.max_offset - status.min_offset for status in statuses),
    }
    show_record(record, output)


@topic.command()
@click.argument("name")
@click.option("--group", required=True, help="Producer group.")
@namesrv_option
@output_option
def producers(name: str, group: str, namesrv: str, output: str) -> None:
    """Show the clients of a producer group at the brokers of topic NAME."""
    with Admin(namesrv) as admin:
        found = admin.producer_connection(group, name)
    show_rows([_connection_row(each) for each in found.connections], output)


def _connection_row(connection: Connection) -> dict[str, Any]:
    return {
        "client_id": connection.client_id,
        "address": connection.client_address,
        "language": connection.language,
        "version": connection.version,
    }
