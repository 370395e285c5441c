"""`pyromq cluster`: brokers, their state and settings; settings and key-value settings of name servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from pyromq import Admin
from pyromq.cli.command_tree import Group
from pyromq.cli.commands.replica_commands import failover, replicas
from pyromq.cli.connection_options import connections, namesrv_option, with_admin
from pyromq.cli.ranges import ANY_TEXT, WholeNumber
from pyromq.cli.render import output_option, show_record, show_rows
from pyromq.client.admin.servers import RoundTrip
from pyromq.clock import local_time
from pyromq.errors import Unavailable, UsageError
from pyromq.excerpt import escaped
from pyromq.logs import PARTIAL_RESULTS, logger_of
from pyromq.plural import counted

partial_results = logger_of(PARTIAL_RESULTS)

T = TypeVar("T")


@click.group(cls=Group)
def cluster() -> None:
    """Show brokers, their state and settings."""


cluster.add_command(replicas)
cluster.add_command(failover)


@cluster.command("list")
@with_admin
@output_option
def list_brokers(admin: Admin, output: str) -> None:
    """List the registered brokers."""
    table = admin.cluster()
    rows = [
        {"cluster": broker.cluster, "broker": name, "id": broker_id, "address": address}
        for name, broker in sorted(table.brokers.items())
        for broker_id, address in sorted(broker.addresses.items())
    ]
    show_rows(rows, output, empty="no broker is registered")


@cluster.command()
@click.argument("broker", required=False)
@with_admin
@output_option
def show(admin: Admin, broker: str | None, output: str) -> None:
    """Show state and counters of BROKER (a name or HOST:PORT), or of all brokers."""
    _show_each(answers_of(admin, broker, admin.broker_runtime), output)


@cluster.command()
@click.argument("broker", required=False)
@with_admin
@output_option
def settings(admin: Admin, broker: str | None, output: str) -> None:
    """Show the settings of BROKER (a name or HOST:PORT), or of all brokers."""
    _show_each(answers_of(admin, broker, admin.broker_config), output)


@cluster.command("set")
@click.argument("broker")
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
@namesrv_option
@output_option
def change_settings(broker: str, changes: tuple[str, ...], namesrv: str, output: str) -> int:
    """Change settings of BROKER (a name or HOST:PORT), by the names of RocketMQ's configuration files.

    Some settings take effect at the broker's next start, and are shown so. The exit code is 1 if a setting did not
    change.
    """
    wanted = _read_changes(changes)
    with Admin(namesrv, connections=connections()) as admin:
        (address, *_) = addresses_of(admin, broker)
        before = admin.broker_config(address)
        admin.servers.change_settings(address, wanted)
        after = admin.broker_config(address)
        next_start = admin.servers.settings_at_next_start(address)
    rows = [
        {
            "setting": name,
            "before": before.get(name),
            "now": after.get(name),
            "next_start": (next_start or {}).get(name),
        }
        for name in wanted
    ]
    show_rows(rows, output)
    for name in (next_start or {}).keys() & wanted.keys():
        click.echo(f"{name} takes effect at the broker's next start", err=True)
    if next_start is None:
        click.echo("this broker does not report which settings take effect only at its next start", err=True)
    ignored = [] if next_start is not None else _ignored(wanted, before, after)
    for each in ignored:
        click.echo(f"error: {each}", err=True)
    return 1 if ignored else 0


def _read_changes(changes: tuple[str, ...]) -> dict[str, str]:
    pairs = [each.partition("=") for each in changes]
    for name, separator, _ in pairs:
        if not separator or not name.strip():
            raise click.UsageError(f"{name + separator!r} is not NAME=VALUE")
    names = [name.strip() for name, _, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise click.UsageError(f"{', '.join(twice)}: give each setting once")
    return {name.strip(): value for name, _, value in pairs}


def _ignored(wanted: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a line for each setting that the server ignored: RocketMQ's servers report no error."""
    found = []
    for name, value in wanted.items():
        if name not in after:
            found.append(f"{escaped(name)} is not changed: the server has no such setting")
        elif after[name] == before.get(name) and after[name].lower() != value.strip().lower():
            found.append(f"{escaped(name)} is not changed: the server refused {value!r} and keeps {after[name]!r}")
    return found


@cluster.group()
def namesrv() -> None:
    """Show and change the settings of name servers."""


@namesrv.command("settings")
@with_admin
@output_option
def namesrv_settings(admin: Admin, output: str) -> None:
    """Show the settings of each name server."""
    _show_each(admin.servers.name_server_settings(), output)


@namesrv.command("set")
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
@namesrv_option
def change_namesrv_settings(changes: tuple[str, ...], namesrv: str) -> int:
    """Change settings of all name servers. The exit code is 1 if a setting did not change."""
    wanted = _read_changes(changes)
    with Admin(namesrv, connections=connections()) as admin:
        before = admin.servers.name_server_settings()
        admin.servers.change_name_server_settings(wanted)
        after = admin.servers.name_server_settings()
    ignored = [f"{address}: {each}" for address in after for each in _ignored(wanted, before[address], after[address])]
    for each in ignored:
        click.echo(f"error: {each}", err=True)
    if not ignored:
        click.echo(f"{', '.join(map(escaped, wanted))}: changed on every name server")
    return 1 if ignored else 0


@cluster.command()
@click.argument("broker", required=False)
@with_admin
def clean(admin: Admin, broker: str | None) -> None:
    """Remove queues of deleted topics, and queues whose messages have all expired, on BROKER or all brokers."""
    for address in addresses_of(admin, broker):
        admin.servers.clean_topics(address)
        admin.servers.clean_queues(address)
        click.echo(f"{address} has removed unused queues")


@cluster.command()
@click.argument("name")
@click.argument("key")
@click.argument("broker", required=False)
@with_admin
@output_option
def statistic(admin: Admin, name: str, key: str, broker: str | None, output: str) -> None:
    """Show counter NAME of KEY on BROKER or all brokers, for example TOPIC_PUT_NUMS of a topic.

    The key of GROUP_GET_NUMS is TOPIC@GROUP.
    """
    found = answers_of(admin, broker, lambda address: admin.servers.statistic(address, name, key))
    rows = [
        {
            "address": address,
            "span": span,
            "sum": item.sum,
            "per_second": round(item.tps, 2),
            "average": round(item.average, 2),
        }
        for address, stats in found.items()
        if stats is not None
        for span, item in (("minute", stats.minute), ("hour", stats.hour), ("day", stats.day))
    ]
    show_rows(rows, output, empty=f"there is no counter {name} of {key}")


@cluster.command()
@click.argument("broker", required=False)
@click.option("--least", type=int, default=0, show_default=True, help="Only queues with at least this lag.")
@click.option("--ordered", is_flag=True, help="Only ordered topics.")
@with_admin
@output_option
def lag(admin: Admin, broker: str | None, least: int, ordered: bool, output: str) -> None:
    """Show the offsets and lag of all groups on BROKER or all brokers, by queue."""
    found = answers_of(admin, broker, lambda each: admin.servers.progress(each, ordered_only=ordered)).values()
    rows = [
        {
            "topic": queue.topic,
            "group": group,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "broker_offset": at.broker_offset,
            "consumer_offset": at.consumer_offset,
            "lag": at.broker_offset - at.consumer_offset,
            "last_consumed": local_time(at.last_ms),
        }
        for each in found
        for listed in each.groups
        for group, stats in sorted(listed.items())
        for topic_stats in stats
        for queue, at in sorted(topic_stats.queues.items())
        if at.broker_offset - at.consumer_offset >= least
    ]
    show_rows(rows, output, empty="no group has such a lag")


@cluster.command("rt")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@click.option(
    "-c", "--count", type=WholeNumber(1, 1_000_000), default=100, show_default=True, help="Messages per topic."
)
@click.option("--size", type=WholeNumber(1, 4 << 20), default=128, show_default=True, help="Bytes of a message.")
@click.option("--each", is_flag=True, help="Show every message.")
@with_admin
@output_option
def round_trips(admin: Admin, topics: tuple[str, ...], count: int, size: int, each: bool, output: str) -> int:
    """Measure the round-trip time of sends to TOPICs, or to each broker's own topic.

    The exit code is 1 if a send failed.
    """
    names = topics or sorted(admin.cluster().brokers)
    found = {name: admin.servers.round_trips(name, count=count, size=size) for name in names}
    if each:
        rows = [_trip_row(trip) for trips in found.values() for trip in trips]
    else:
        rows = [_trips_row(name, trips) for name, trips in found.items()]
    show_rows(rows, output)
    return 1 if any(trip.failure for trips in found.values() for trip in trips) else 0


def _trip_row(trip: RoundTrip) -> dict[str, Any]:
    return {
        "topic": trip.queue.topic,
        "broker": trip.queue.broker_name,
        "queue": trip.queue.queue_id,
        "ms": round(trip.milliseconds, 3),
        "failure": None if trip.failure is None else str(trip.failure),
    }


def _trips_row(topic: str, trips: Sequence[RoundTrip]) -> dict[str, Any]:
    """Return the row of a topic. The first trip opens a connection, so only the others count, as with mqadmin."""
    times = sorted(trip.milliseconds for trip in trips[1:] or trips)
    return {
        "topic": topic,
        "confirmed": sum(trip.failure is None for trip in trips),
        "failed": sum(trip.failure is not None for trip in trips),
        "average_ms": round(sum(times) / len(times), 3),
        "median_ms": round(times[len(times) // 2], 3),
        "slowest_ms": round(times[-1], 3),
    }


def addresses_of(admin: Admin, broker: str | None) -> list[str]:
    """Return the addresses of a broker (name or HOST:PORT), or of all. Raises `UsageError` for an unknown name."""
    if broker is not None and ":" in broker:
        return [broker]
    table = admin.cluster().brokers
    if broker is not None and broker not in table:
        raise UsageError(f"broker {broker!r} is not registered; registered: {', '.join(sorted(table)) or 'none'}")
    names = sorted(table) if broker is None else [broker]
    return [address for name in names for _, address in sorted(table[name].addresses.items())]


def answers_of(admin: Admin, broker: str | None, ask: Callable[[str], T]) -> dict[str, T]:
    """Call `ask` for each address and return the results by address.

    Unreachable brokers are named on standard error. Raises `Unavailable` if none can be reached.
    """
    found: dict[str, T] = {}
    unreachable: dict[str, Unavailable] = {}
    for address in addresses_of(admin, broker):
        try:
            found[address] = ask(address)
        except Unavailable as error:
            unreachable[address] = error
    if unreachable and not found:
        raise next(iter(unreachable.values()))
    for address, reason in unreachable.items():
        partial_results.warning("broker %s is left out, it cannot be reached: %s", address, reason)
    return found


def _show_each(figures: Mapping[str, Mapping[str, str]], output: str) -> None:
    records = [{"address": address, **dict(sorted(table.items()))} for address, table in figures.items()]
    if output == "json":
        show_rows(records, output)
        return
    for number, record in enumerate(records):
        if number:
            click.echo()
        show_record(record, output)


@cluster.command()
@click.argument("broker")
@with_admin
def wipe(admin: Admin, broker: str) -> None:
    """Remove BROKER's write permission: producers stop sending to it, consumers continue.

    Only the name servers' memory has this change: it ends when the broker registers changed topics, or a name server
    restarts.
    """
    addresses_of(admin, broker)  # name servers answer 0 topics for an unknown broker
    count = admin.wipe_write_permission(broker)
    click.echo(
        f"producers no longer send to {broker} ({counted(count, 'topic')}); undo with `pyromq cluster unwipe {broker}`"
    )


@cluster.command()
@click.argument("broker")
@with_admin
def unwipe(admin: Admin, broker: str) -> None:
    """Restore BROKER's write permission, so that producers send to it again."""
    addresses_of(admin, broker)  # name servers answer 0 topics for an unknown broker
    count = admin.add_write_permission(broker)
    click.echo(f"producers send to {broker} again ({counted(count, 'topic')})")


@cluster.group()
def kv() -> None:
    """Show and change the name servers' key-value settings."""


@kv.command("list")
@click.argument("namespace")
@with_admin
@output_option
def list_values(admin: Admin, namespace: str, output: str) -> None:
    """List the values of NAMESPACE."""
    values = admin.kv_namespace(namespace)
    rows = [{"key": key, "value": value} for key, value in sorted(values.items())]
    show_rows(rows, output, empty=f"namespace {namespace} has no values")


@kv.command()
@click.argument("namespace")
@click.argument("key")
@click.argument("value", type=ANY_TEXT)
@with_admin
def put(admin: Admin, namespace: str, key: str, value: str) -> None:
    """Store VALUE as KEY of NAMESPACE on every name server."""
    admin.put_kv(namespace, key, value)
    click.echo(escaped(f"{namespace} {key} is stored"))


@kv.command()
@click.argument("namespace")
@click.argument("key")
@with_admin
def delete(admin: Admin, namespace: str, key: str) -> None:
    """Delete KEY of NAMESPACE on every name server."""
    known = admin.kv(namespace, key)
    admin.delete_kv(namespace, key)
    click.echo(escaped(f"{namespace} {key} {'had no value' if known is None else 'is deleted'}"))
