"""`pyromq topic`: create, alter, delete, list and inspect topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.cluster_names import TOPIC_NAME, broker_option, cluster_option, place_text
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import connections, namesrv_option, with_admin
from pyromq.cli.progress_line import ProgressLine
from pyromq.cli.prompts import confirm, yes_option
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import output_option, show_record, show_rows
from pyromq.client.admin.cluster_topics import ORDER_NAMESPACE, QueueStatus, TopicChange, permission_text
from pyromq.clock import local_time
from pyromq.errors import TopicNotFound
from pyromq.excerpt import escaped
from pyromq.names import REPLY_SUFFIX, is_system_topic
from pyromq.plural import counted
from pyromq.remoting.bodies import MESSAGE_TYPES, ClientConnection, TopicConfig
from pyromq.remoting.codes import Permission


@click.group(cls=Group)
def topic() -> None:
    """Create, alter, delete, list and inspect topics."""


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@click.option("--queues", type=WholeNumber(1, 10_000), default=8, show_default=True, help="Queues on each broker.")
@click.option("--read-queues", type=WholeNumber(0), help="Queues to read from. [default: --queues]")
@click.option("--write-queues", type=WholeNumber(0), help="Queues to write to. [default: --queues]")
@click.option("--permission", type=click.Choice(["r", "w", "rw"]), default="rw", show_default=True)
@click.option("--order", is_flag=True, help="Fixed queues: keys do not move to other queues if a broker dies.")
@click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
    help="Messages that clients of RocketMQ 5 may send. [default: no type, which means all]",
)
@cluster_option
@broker_option
@with_admin
def create(
    admin: Admin, name: str, queues: int, read_queues: int | None, write_queues: int | None, **where: str | bool | None
) -> None:
    """Create topic NAME. `pyromq topic alter` changes an existing topic."""
    admin.create_topic(name, queues, read_queues=read_queues, write_queues=write_queues, **where)  # type: ignore[arg-type]  # click's options by name
    click.echo(f"topic {name} is created")


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@click.option("--queues", type=WholeNumber(1, 10_000), help="Queues on each broker, to read and to write.")
@click.option("--read-queues", type=WholeNumber(0), help="Queues to read from.")
@click.option("--write-queues", type=WholeNumber(0), help="Queues to write to.")
@click.option("--permission", type=click.Choice(["r", "w", "rw"]))
@click.option("--order/--no-order", default=None, help="Fixed queues, as in `topic create`.")
@click.option(
    "--type", "message_type", type=click.Choice(MESSAGE_TYPES, case_sensitive=False), help="Type, as in `topic create`."
)
@cluster_option
@broker_option
@yes_option
@namesrv_option
@output_option
def alter(name: str, queues: int | None, yes: bool, namesrv: str, output: str, **options: Any) -> None:
    """Change the given settings of topic NAME.

    Asks for confirmation if messages would become unreadable. These messages stay in their queues, and are readable
    again if the read queues are restored.
    """
    place = {each: options.pop(each) for each in ("cluster", "broker")}
    for each in ("read_queues", "write_queues"):
        options[each] = queues if options[each] is None else options[each]
    if all(value is None for value in options.values()):
        raise click.UsageError(
            "give a setting: --queues, --read-queues, --write-queues, --permission, --order or --type"
        )
    with Admin(namesrv, connections=connections()) as admin:
        before = admin.topic_configs(name, **place)
        if not before:
            raise TopicNotFound(f"topic {name} does not exist")
        change = TopicChange(**options)
        after = {broker: change.applied_to(config) for broker, config in before.items()}
        if not yes:
            for reason in _hidden(admin.topic_status(name), before, after):
                click.echo(escaped(reason), err=True)
                yes = True
            if yes:
                confirm("change it anyway?")
        admin.alter_topic(name, **place, **options)
    rows = [row for broker in before for row in _changes(broker, before[broker], after[broker])]
    show_rows(rows, output, empty=f"topic {name} has these settings already")


def _hidden(
    statuses: list[QueueStatus], before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
) -> Iterator[str]:
    """Yield a warning for each broker where messages would become unreadable."""
    for broker, new in after.items():
        old_count, new_count = _readable(before[broker]), _readable(new)
        hidden = [
            status
            for status in statuses
            if status.queue.broker_name == broker and new_count <= status.queue.queue_id < old_count
        ]
        if messages := sum(status.max_offset - status.min_offset for status in hidden):
            queues = counted(len(hidden), "queue")
            yield f"{counted(messages, 'message')} of {broker} would be unreadable, in {queues}"
        if new.permission & Permission.WRITE and new_count < new.write_queues:
            yield f"messages sent to queue {new_count} of {broker} and above would be unreadable"


def _readable(config: TopicConfig) -> int:
    return config.read_queues if config.permission & Permission.READ else 0


def _changes(broker: str, old: TopicConfig, new: TopicConfig) -> Iterator[dict[str, Any]]:
    for setting, before, after in (
        ("read_queues", old.read_queues, new.read_queues),
        ("write_queues", old.write_queues, new.write_queues),
        ("permission", permission_text(old.permission), permission_text(new.permission)),
        ("order", old.order, new.order),
        ("type", old.message_type, new.message_type),
    ):
        if before != after:
            yield {"broker": broker, "setting": setting, "before": before, "now": after}


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@cluster_option
@yes_option
@with_admin
def delete(admin: Admin, name: str, cluster: str | None, yes: bool) -> None:
    """Delete topic NAME and its queues on all brokers, or in one cluster."""
    admin.topic_route(name)  # raises for an unknown topic, before the prompt
    where = place_text(cluster)
    if not yes:
        confirm(f"delete topic {name} and all its messages{where}?")
    admin.delete_topic(name, cluster=cluster)
    click.echo(f"topic {name} is deleted{where}")


@topic.command("list")
@click.option("--all", "everything", is_flag=True, help="Include built-in, retry and dead-letter topics.")
@click.option("--names", "only_names", is_flag=True, help="Show only names, without requests to brokers.")
@with_admin
@output_option
def list_topics(admin: Admin, everything: bool, only_names: bool, output: str) -> None:
    """List topics with their queues, messages and last write."""
    built_in = _built_in(admin)
    if only_names:
        rows: list[dict[str, Any]] = [{"topic": name} for name in admin.topics()]
    else:
        with ProgressLine("topics", beside_output=True) as progress:
            found = admin.overviews.topics(shown=progress.show)
        rows = [
            {
                "topic": each.topic,
                "queues": each.queues,
                "messages": each.messages,
                "last_write": local_time(each.last_store_ms),
                "brokers": each.brokers,
            }
            for each in found
        ]
    rows = [row for row in rows if everything or _is_users(row["topic"], built_in)]
    show_rows(rows, output, empty="no topics; --all shows the built-in ones")


def _built_in(admin: Admin) -> set[str]:
    table = admin.cluster()
    return {*table.brokers, *table.clusters, *(name + REPLY_SUFFIX for name in table.clusters)}


def _is_users(name: str, built_in: set[str]) -> bool:
    return name not in built_in and not is_system_topic(name) and name[0] != "%"


@topic.command()
@click.argument("name", type=TOPIC_NAME, required=False)
@click.option("--active", is_flag=True, help="Only topics with messages in the last 24 hours.")
@click.option("--all", "everything", is_flag=True, help="Include built-in topics.")
@with_admin
@output_option
def rates(admin: Admin, name: str | None, active: bool, everything: bool, output: str) -> None:
    """Show the rates of topic NAME, or of all topics: messages in, and messages out to each group.

    Rates are per second over the last minute; counts are of the last 24 hours.
    """
    with ProgressLine("topics", beside_output=True) as progress:
        built_in = _built_in(admin)
        found = admin.overviews.rates(name, active_only=active, shown=progress.show)
    rows = [
        {
            "topic": each.topic,
            "group": each.group,
            "lag": each.lag,
            "in_per_second": round(each.in_per_second, 2),
            "out_per_second": round(each.out_per_second, 2),
            "in_24h": each.in_day,
            "out_24h": each.out_day,
        }
        for each in found
        if name or everything or _is_users(each.topic, built_in)
    ]
    show_rows(rows, output, empty="no topic has messages")


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@with_admin
@output_option
def groups(admin: Admin, name: str, output: str) -> None:
    """List the groups that consume topic NAME or have committed offsets of it."""
    admin.topic_route(name)
    found = admin.members.groups_of_topic(name)
    show_rows([{"group": each} for each in found], output, empty=f"no group consumes {name}")


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@click.argument("clients", nargs=-1, required=True, metavar="CLIENT_ID...")
@with_admin
@output_option
def allocate(admin: Admin, name: str, clients: tuple[str, ...], output: str) -> None:
    """Show how the queues of topic NAME would be assigned to these members of a group."""
    found = admin.allocation(name, clients)
    rows = [
        {"client_id": client, "broker": queue.broker_name, "queue": queue.queue_id}
        for client, queues in found.items()
        for queue in queues
    ]
    show_rows(rows, output)


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@click.option("--set", "value", metavar="BROKER:QUEUES;...", help="New value.")
@click.option("--delete", "deletes", is_flag=True, help="Delete the value: clients no longer see an order topic.")
@namesrv_option
@output_option
def order(name: str, value: str | None, deletes: bool, namesrv: str, output: str) -> None:
    """Show or change the fixed queues of order topic NAME, which name servers store."""
    if value is not None and deletes:
        raise click.UsageError("--set and --delete exclude each other")
    if value is not None and not re.fullmatch(r"[^:;]+:[0-9]+(;[^:;]+:[0-9]+)*", value):
        raise click.UsageError(f"{value!r} is not BROKER:QUEUES;..., for example broker-a:8;broker-b:8")
    with Admin(namesrv, connections=connections()) as admin:
        if deletes:
            admin.delete_kv(ORDER_NAMESPACE, name)
        elif value is not None:
            admin.topic_route(name)  # raises `TopicNotFound`
            admin.put_kv(ORDER_NAMESPACE, name, value)
        kept = admin.kv(ORDER_NAMESPACE, name)
        if kept is None and not deletes:
            admin.topic_route(name)
    show_record({"topic": name, "fixed_queues": kept}, output)


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@with_admin
@output_option
def route(admin: Admin, name: str, output: str) -> None:
    """Show the brokers of topic NAME, with addresses and queues."""
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
@click.argument("name", type=TOPIC_NAME)
@with_admin
@output_option
def stats(admin: Admin, name: str, output: str) -> None:
    """Show offsets, messages and last write of each queue of topic NAME."""
    statuses = admin.topic_status(name, partial=True)
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
@click.argument("name", type=TOPIC_NAME)
@with_admin
@output_option
def show(admin: Admin, name: str, output: str) -> None:
    """Show the settings of topic NAME and its number of messages."""
    config = admin.topic_config(name)
    statuses = admin.topic_status(name, partial=True)
    record = {
        "topic": name,
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "permission": permission_text(config.permission),
        "order": config.order,
        "type": config.message_type,
        "brokers": sorted({status.queue.broker_name for status in statuses}),
        "messages": sum(status.max_offset - status.min_offset for status in statuses),
        "last_write": local_time(max((status.last_store_ms for status in statuses), default=0)),
    }
    show_record(record, output)


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@click.option("-g", "--group", required=True, help="Producer group.")
@with_admin
@output_option
def producers(admin: Admin, name: str, group: str, output: str) -> None:
    """Show the clients of a producer group that are connected to brokers of topic NAME."""
    found = admin.producer_connection(group, name)
    show_rows([_connection_row(each) for each in found.connections], output)


def _connection_row(connection: ClientConnection) -> dict[str, Any]:
    return {
        "client_id": connection.client_id,
        "address": connection.client_address,
        "language": connection.language,
        "version": connection.version,
    }
