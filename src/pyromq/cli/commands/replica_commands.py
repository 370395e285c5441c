"""`pyromq cluster replicas` and `pyromq cluster failover`: the state of a replica set, and the change of its master."""

from __future__ import annotations

from typing import Any

import click

from pyromq import Admin
from pyromq.cli.command_tree import Command
from pyromq.cli.connection_options import with_admin
from pyromq.cli.prompts import confirm, yes_option
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import as_json, output_option, show_record, show_rows
from pyromq.client.admin.replica_diagnosis import last_in_sync
from pyromq.client.admin.replica_sets import ReplicaSetAnswers, electable
from pyromq.clock import local_time
from pyromq.excerpt import escaped
from pyromq.remoting.bodies import AcceptedLoss, ReplicaState

_MAX_NUMBER = 255
_DEFAULT_REASON = "pyromq cluster failover --accept-loss"


@click.command(cls=Command)
@click.argument("set_name", metavar="SET")
@with_admin
@output_option
def replicas(admin: Admin, set_name: str, output: str) -> int:
    """Show the replicas of SET, a broker name: master, in-sync list, ends and lags.

    The exit code is 1 if the set has no master or two, and if it refuses sends.
    """
    found = admin.replica_sets.state(set_name)
    status = found.best
    troubles = _troubles(found)
    rows = [_row(each) for each in found.replicas]
    if output == "json":
        record = {**_summary(found), "losses": [_loss(each) for each in status.losses]}
        click.echo(as_json({**record, "replicas": rows, "troubles": troubles}, indent=2))
    else:
        show_record(_summary(found), output)
        click.echo()
        show_rows(rows, output)
        for loss in status.losses:
            click.echo(f"loss accepted: {escaped(_loss_text(loss))}", err=True)
        for trouble in troubles:
            click.echo(f"trouble: {escaped(trouble)}", err=True)
    return 1 if len(found.masters) != 1 or status.refusal else 0


@click.command(cls=Command)
@click.argument("set_name", metavar="SET")
@click.option("--to", "number", type=WholeNumber(1, _MAX_NUMBER), required=True, help="Number of the new master.")
@click.option(
    "--accept-loss", is_flag=True, help="Elect a replica that is not in sync: confirmed messages may be lost."
)
@click.option("--reason", default=_DEFAULT_REASON, help="Why the loss is accepted; the set's record keeps it for ever.")
@yes_option
@with_admin
def failover(admin: Admin, set_name: str, number: int, accept_loss: bool, reason: str, yes: bool) -> None:
    """Make another replica of SET, a broker name, the master.

    Without --accept-loss nothing is lost: the master hands over to a replica that is in sync. With --accept-loss a set
    without a master gets one, although the replica may lack confirmed messages.
    """
    if accept_loss:
        found = admin.replica_sets.state(set_name)
        electable(found, number)
        if not yes:
            confirm(_question(found, number))
        seconds = admin.replica_sets.accept_loss(set_name, number, reason)
    else:
        seconds = admin.replica_sets.hand_over(set_name, number)
    status = admin.replica_sets.state(set_name).best
    click.echo(f"replica {number} is the master of {set_name}, epoch {status.epoch}, after {seconds:.3f} s")
    if status.refusal:
        click.echo(f"it accepts no messages yet: {escaped(status.refusal)}", err=True)


def _summary(found: ReplicaSetAnswers) -> dict[str, Any]:
    status = found.best
    return {
        "set": status.set_name,
        "master": status.number if status.is_master else None,
        "epoch": status.record_epoch,
        "in_sync": [each.number for each in status.in_sync],
        "min_in_sync": status.min_in_sync,
        "preferred": status.preferred,
        "confirmed_end": status.confirmed_end,
        "etcd_seconds": status.etcd_seconds,
        "told_by": status.number,
    }


def _row(replica: ReplicaState) -> dict[str, Any]:
    return {
        "replica": replica.number,
        "role": None if not replica.is_connected else "master" if replica.is_master else "follower",
        "address": replica.address,
        "connected": replica.is_connected,
        "in_sync": replica.is_in_sync,
        "since": local_time(replica.since_ms) if replica.since_ms is not None else None,
        "end": replica.end,
        "lag_bytes": replica.lag_bytes,
        "lag_seconds": replica.lag_seconds,
        "incarnation": replica.incarnation,
        "version": replica.version,
    }


def _loss(loss: AcceptedLoss) -> dict[str, Any]:
    return {
        "epoch": loss.epoch,
        "master": loss.master,
        "end": loss.end,
        "in_sync": [each.number for each in loss.in_sync],
        "reason": loss.reason,
    }


def _loss_text(loss: AcceptedLoss) -> str:
    return f"epoch {loss.epoch}, replica {loss.master} elected, messages behind {loss.end} may be gone: {loss.reason}"


def _troubles(found: ReplicaSetAnswers) -> list[str]:
    """Return a line for each problem of a replica set."""
    status, masters = found.best, found.masters
    lines = [f"{address} does not answer: {error}" for address, error in sorted(found.errors.items())]
    if len(masters) > 1:
        both = " and ".join(f"replica {each.number} (epoch {each.epoch})" for each in masters)
        lines.append(f"two masters: {both}")
    if not masters:
        lines.append(f"no master; {last_in_sync(found)}")
    if status.trouble:
        lines.append(status.trouble)
    if status.refusal:
        lines.append(f"the master refuses sends: {status.refusal}")
    return lines


def _question(found: ReplicaSetAnswers, number: int) -> str:
    end = next(each.end for each in found.replicas if each.number == number)
    return (
        f"{last_in_sync(found)}; replica {number} ends at {end}: confirmed messages that it lacks are lost for ever;"
        f" make replica {number} the master of {found.name}?"
    )
