"""`pyromq cluster`: brokers, their state and settings; what name servers keep as key-value settings."""

from __future__ import annotations

from collections.abc import Callable

import click

from pyromq import Admin
from pyromq.cli.render import namesrv_option, output_option, show_record, show_rows
from pyromq.errors import UsageError
from pyromq.plural import counted


@click.group()
def cluster() -> None:
    """Show brokers, their state and settings."""


@cluster.command("list")
@namesrv_option
@output_option
def list_brokers(namesrv: str, output: str) -> None:
    """List the brokers that name servers know."""
    with Admin(namesrv) as admin:
        table = admin.cluster()
    rows = [
        {"cluster": broker.cluster, "broker": name, "id": broker_id, "address": address}
        for name, broker in sorted(table.brokers.items())
        for broker_id, address in sorted(broker.addresses.items())
    ]
    show_rows(rows, output, empty="no broker is registered")


@cluster.command()
@click.argument("broker", required=False)
@namesrv_option
@output_option
def show(broker: str | None, namesrv: str, output: str) -> None:
    """Show state and counters of BROKER (a name or HOST:PORT), or of all brokers."""
    with Admin(namesrv) as admin:
        _show_each(addresses_of(admin, broker), admin.broker_runtime, output)


@cluster.command()
@click.argument("broker", required=False)
@namesrv_option
@output_option
def settings(broker: str | None, namesrv: str, output: str) -> None:
    """Show the settings of BROKER (a name or HOST:PORT), or of all brokers."""
    with Admin(namesrv) as admin:
        _show_each(addresses_of(admin, broker), admin.broker_config, output)


def addresses_of(admin: Admin, broker: str | None) -> list[str]:
    if broker is not None and ":" in broker:
        return [broker]
    table = admin.cluster().brokers
    if broker is not None and broker not in table:
        raise UsageError(f"broker {broker!r} is not registered; there is {', '.join(sorted(table)) or 'none'}")
    names = sorted(table) if broker is None else [broker]
    return [address for name in names for _, address in sorted(table[name].addresses.items())]


def _show_each(addresses: list[str], figures: Callable[[str], dict[str, str]], output: str) -> None:
    records = [{"address": address, **dict(sorted(figures(address).items()))} for address in addresses]
    if output == "json":
        show_rows(records, output)
        return
    for number, record in enumerate(records):
        if number:
            click.echo()
        show_record(record, output)


@cluster.command()
@click.argument("broker")
@namesrv_option
def wipe(broker: str, namesrv: str) -> None:
    """Take BROKER out of producers' routes; consumers go on."""
    with Admin(namesrv) as admin:
        _check_known(admin, broker)
        count = admin.wipe_write_permission(broker)
    click.echo(
        f"producers no longer send to {broker} ({counted(count, 'topic')}); undo with `pyromq cluster unwipe {broker}`"
    )


@cluster.command()
@click.argument("broker")
@namesrv_option
def unwipe(broker: str, namesrv: str) -> None:
    """Put BROKER back into producers' routes."""
    with Admin(namesrv) as admin:
        _check_known(admin, broker)
        count = admin.add_write_permission(broker)
    click.echo(f"producers send to {broker} again ({counted(count, 'topic')})")


def _check_known(admin: Admin, broker: str) -> None:
    """A name server answers 0 topics for a name that nobody has."""
    addresses_of(admin, broker)


@cluster.group()
def kv() -> None:
    """Show and change the key-value settings that name servers keep."""


@kv.command("list")
@click.argument("namespace")
@namesrv_option
@output_option
def list_values(namespace: str, namesrv: str, output: str) -> None:
    """List the values of NAMESPACE."""
    with Admin(namesrv) as admin:
        values = admin.kv_namespace(namespace)
    rows = [{"key": key, "value": value} for key, value in sorted(values.items())]
    show_rows(rows, output, empty=f"namespace {namespace} has no values")


@kv.command()
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
@namesrv_option
def put(namespace: str, key: str, value: str, namesrv: str) -> None:
    """Store VALUE as KEY of NAMESPACE at every name server."""
    with Admin(namesrv) as admin:
        admin.put_kv(namespace, key, value)
    click.echo(f"{namespace} {key} is stored")


@kv.command()
@click.argument("namespace")
@click.argument("key")
@namesrv_option
def delete(namespace: str, key: str, namesrv: str) -> None:
    """Delete KEY of NAMESPACE at every name server."""
    with Admin(namesrv) as admin:
        admin.delete_kv(namespace, key)
    click.echo(f"{namespace} {key} is deleted")
