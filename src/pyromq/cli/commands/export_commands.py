"""`pyromq export`: settings, topics and groups, metrics of a cluster, in the format of mqadmin's exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import with_admin
from pyromq.cli.render import as_json


@click.group(cls=Group)
def export() -> None:
    """Export settings, topics and groups, or metrics of a cluster as JSON, in mqadmin's format."""


_cluster_option = click.option("--cluster", help="Only this cluster. [default: all brokers]")
_file_option = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, allow_dash=True),  # a string, so that an empty one is refused
    help="Output file. [default: standard output]",
)


@export.command()
@_cluster_option
@_file_option
@with_admin
def settings(admin: Admin, cluster: str | None, path: str | None) -> None:
    """Export the masters' main settings."""
    _write(admin.exports.settings(cluster), path)


@export.command()
@_cluster_option
@click.option("--all", "everything", is_flag=True, help="Include retry and dead-letter topics.")
@_file_option
@with_admin
def metadata(admin: Admin, cluster: str | None, everything: bool, path: str | None) -> None:
    """Export topics and consumer groups, without built-in ones."""
    _write(admin.exports.metadata(cluster, of_groups=everything), path)


@export.command()
@_cluster_option
@_file_option
@with_admin
def metrics(admin: Admin, cluster: str | None, path: str | None) -> None:
    """Export load and size of each master broker, and the totals."""
    _write(admin.exports.metrics(cluster), path)


def _write(exported: Mapping[str, Any], path: str | None) -> None:
    text = as_json(exported, indent=2)
    if path is None or path == "-":
        click.echo(text)
        return
    try:
        Path(path).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:  # a full disk's error has no name
        raise OSError(error.errno, error.strerror, path) from None
