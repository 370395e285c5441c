"""`pyromq topic`: create, alter, delete, list and inspect topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.asking import confirm
from pyromq.cli.render import (
    local_time,
    namesrv_option,
    output_option,
    show_record,
    show_rows,
)
from pyromq.client.admin.topics import QueueStatus, TopicChange, permission_text
from pyromq.errors import TopicNotFound
from pyromq.names import is_system_topic
from pyromq.plural import counted
from pyromq.remoting.bodies import Connection, TopicConfig
from pyromq.remoting.codes import Permission


@click.group()
def topic() -> None:
    """Create, alter, delete, list and inspect topics."""


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
    """Create topic NAME. One that exists is changed with `pyromq topic alter`."""
    with Admin(namesrv) as admin:
        admin.create_topic(name, queues, read_queues=read_queues, write_queues=write_queues, **where)  # type: ignore[arg-type]  # click's options by name
    click.echo(f"topic {name} is created")


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 10_000), help="Queues at each broker, to read and to write.")
@click.option("--read-queues", type=click.IntRange(0), help="Queues to read from.")
@click.option("--write-queues", type=click.IntRange(0), help="Queues to write to.")
@click.option("--permission", type=click.Choice(["r", "w", "rw"]))
@click.option("--order/--no-order", default=None, help="Fixed queue order, as with `topic create`.")
@click.option("--cluster", help="Only at the brokers of this cluster.")
@click.option("--broker", help="Only at this broker.")
@click.option("--yes", is_flag=True, help="Do not ask, even if messages get out of sight.")
@namesrv_option
def alter(name: str, queues: int | None, yes: bool, namesrv: str, **options: Any) -> None:
    """Change settings of topic NAME: those that are given. The others stay as they are.

    Asks when messages would get out of sight; they stay in their queues, and are back when these are read again.
    """
    place = {each: options.pop(each) for each in ("cluster", "broker")}
    for each in ("read_queues", "write_queues"):
        options[each] = queues if options[each] is None else options[each]
    if all(value is None for value in options.values()):
        raise click.UsageError("say what to change: --queues, --read-queues, --write-queues, --permission or --order")
    with Admin(namesrv) as admin:
        before = admin.topic_configs(name, **place)
        if not before:
            raise TopicNotFound(f"topic {name} does not exist")
        change = TopicChange(**options)
        after = {broker: change.applied_to(config) for broker, config in before.items()}
        if not yes:
            for reason in _hidden(admin.topic_status(name), before, after):
                click.echo(reason, err=True)
                yes = True
            if yes:
                confirm("change it all the same?")
        admin.alter_topic(name, **place, **options)
    rows = [row for broker in before for row in _changes(broker, before[broker], after[broker])]
    show_rows(rows, "table", empty=f"topic {name} has these settings already")


def _hidden(
    statuses: list[QueueStatus], before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
) -> Iterator[str]:
    """Yield a line for each broker where messages can be read now and could not be read afterwards."""
    for broker, new in after.items():
        old_count, new_count = _readable(before[broker]), _readable(new)
        hidden = [
            status
            for status in statuses
            if status.queue.broker_name == broker and new_count <= status.queue.queue_id < old_count
        ]
        if messages := sum(status.max_offset - status.min_offset for status in hidden):
            queues = counted(len(hidden), "queue")
            yield f"{counted(messages, 'message')} of {broker} would be out of sight, in {queues}"
        if new.permission & Permission.WRITE and new_count < new.write_queues:
            yield f"what is sent to queue {new_count} of {broker} and above could not be read"


def _readable(config: TopicConfig) -> int:
    return config.read_queues if config.permission & Permission.READ else 0


def _changes(broker: str, old: TopicConfig, new: TopicConfig) -> Iterator[dict[str, Any]]:
    for setting, before, after in (
        ("read_queues", old.read_queues, new.read_queues),
        ("write_queues", old.write_queues, new.write_queues),
        ("permission", permission_text(old.permission), permission_text(new.permission)),
        ("order", old.order, new.order),
    ):
        if before != after:
            yield {"broker": broker, "setting": setting, "before": before, "now": after}


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
def delete(name: str, yes: bool, namesrv: str) -> None:
    """Delete topic NAME and its queues at all brokers."""
    with Admin(namesrv) as admin:
        admin.topic_route(name)  # nobody is asked about a topic that is not there
        if not yes:
            confirm(f"delete topic {name} and all its messages?")
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
