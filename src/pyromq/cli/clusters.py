"""`pyromq cluster`: brokers, their state and settings."""

from __future__ import annotations

import click

from pyromq.cli.render import namesrv_option, output_option, show_record, show_rows
from pyromq.client.blocking import Admin


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
@click.argument("address", metavar="HOST:PORT")
@namesrv_option
@output_option
def show(address: str, namesrv: str, output: str) -> None:
    """Show the state of the broker at an address."""
    with Admin(namesrv) as admin:
        show_record(admin.broker_runtime(address), output)


@cluster.command()
@click.argument("address", metavar="HOST:PORT")
@namesrv_option
@output_option
def settings(address: str, namesrv: str, output: str) -> None:
    """Show the settings of the broker at an address."""
    with Admin(namesrv) as admin:
        show_record(admin.broker_config(address), output)


@cluster.command()
@click.argument("broker")
@namesrv_option
def wipe(broker: str, namesrv: str) -> None:
    """Take BROKER out of producers' routes; consumers go on."""
    with Admin(namesrv) as admin:
        admin.wipe_write_permission(broker)
    click.echo(f"producers no longer send to {broker}; undo with `pyromq cluster unwipe {broker}`")


@cluster.command()
@click.argument("broker")
@namesrv_option
def unwipe(broker: str, namesrv: str) -> None:
    """Put BROKER back into producers' routes."""
    with Admin(namesrv) as admin:
        admin.add_write_permission(broker)
    click.echo(f"producers send to {broker} again")
