"""`pyromq transaction`: lists, shows and decides undecided half messages; lists batch transactions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any

import click

from pyromq.cli.command_tree import Group
from pyromq.cli.commands.messages.consume import as_record
from pyromq.cli.connection_options import connections, namesrv_option
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import one_line, output_option, show_outcome, show_record, show_rows
from pyromq.client.admin.messages.undecided_transactions import AsyncHalfMessages, HalfMessage
from pyromq.client.client_config import ProducerConfig
from pyromq.client.client_hooks import Decision
from pyromq.client.producer.batch_transactions import AsyncBatchTransactions
from pyromq.clock import local_time
from pyromq.errors import MQError, QueryNotFound

OPERATOR = "pyromq-transaction"  # producer group of the requests to brokers
TIMEOUT_SECONDS = 5.0


@click.group(cls=Group)
def transaction() -> None:
    """List, show, commit and roll back undecided half messages.

    Consumers do not see a message of a transaction until its producer commits it. The broker checks with the producer
    group several times, then gives up and moves the message to TRANS_CHECK_MAX_TIME_TOPIC.
    """


@transaction.command("list")
@click.option("-g", "--group", metavar="GROUP", help="Only half messages of this producer group.")
@click.option("-t", "--topic", metavar="TOPIC", help="Only half messages for this topic.")
@click.option(
    "-c",
    "--count",
    type=WholeNumber(1, sys.maxsize),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most N.",
)
@namesrv_option
@output_option
def list_half_messages(group: str | None, topic: str | None, count: int, namesrv: str, output: str) -> None:
    """List undecided half messages, oldest first."""
    found = sorted(asyncio.run(_undecided(namesrv, group, topic)), key=lambda half: half.born_ms)
    rows = [_record(half) if output == "json" else _row(half) for half in islice(found, count)]
    show_rows(rows, output, empty="there are no such half messages" if group or topic else "nothing is undecided")
    if len(found) > count:
        click.echo(f"{len(found) - count} more; --count N shows up to N", err=True)


@transaction.command()
@click.argument("message_id")
@namesrv_option
@output_option
def show(message_id: str, namesrv: str, output: str) -> None:
    """Show one undecided half message, given by unique id or offset id: its content and its destination."""
    show_record(asyncio.run(_shown(namesrv, message_id)), output)


@transaction.command()
@click.argument("message_ids", metavar="MESSAGE_ID...", nargs=-1, required=True)
@namesrv_option
@output_option
def commit(message_ids: tuple[str, ...], namesrv: str, output: str) -> int:
    """Commit undecided half messages in place of their producer: consumers receive them.

    JSON is one object a line. The exit code is 1 if one could not be committed.
    """
    return asyncio.run(_decide(namesrv, message_ids, Decision.COMMIT, output=output))


@transaction.command()
@click.argument("message_ids", metavar="MESSAGE_ID...", nargs=-1, required=True)
@namesrv_option
@output_option
def rollback(message_ids: tuple[str, ...], namesrv: str, output: str) -> int:
    """Roll back undecided half messages in place of their producer: consumers never receive them.

    JSON is one object a line. The exit code is 1 if one could not be rolled back.
    """
    return asyncio.run(_decide(namesrv, message_ids, Decision.ROLLBACK, output=output))


@transaction.command()
@namesrv_option
@output_option
def batches(namesrv: str, output: str) -> None:
    """List undecided batch transactions. Brokers roll them back after a while."""
    rows = asyncio.run(_undecided_batches(namesrv))
    show_rows(rows, output, empty="no batch transaction is undecided")


@transaction.command()
@click.argument("name")
@namesrv_option
@output_option
def batch(name: str, namesrv: str, output: str) -> None:
    """Show the decision on a batch transaction: the committed attempts, its time, and whether all is visible."""
    show_record(asyncio.run(_decided_batch(namesrv, name)), output)


_DONE = {Decision.COMMIT: "committed", Decision.ROLLBACK: "rolled back"}


async def _undecided(namesrv: str, group: str | None, topic: str | None) -> list[HalfMessage]:
    async with (
        AsyncHalfMessages(namesrv, connections=connections()) as half_messages,
        aclosing(half_messages.undecided(group, topic)) as undecided,
    ):
        return [half async for half in undecided]


def _batch_transactions(namesrv: str) -> AsyncBatchTransactions:
    config = ProducerConfig(connections=connections())
    return AsyncBatchTransactions(OPERATOR, namesrv, timeout=TIMEOUT_SECONDS, config=config)


async def _undecided_batches(namesrv: str) -> list[dict[str, Any]]:
    async with _batch_transactions(namesrv) as transactions:
        return [
            {
                "transaction": each.transaction,
                "broker": each.broker_name,
                "attempts": len(each.messages),
                "messages": sum(each.messages.values()),
                "silent_seconds": round(each.silent_seconds),
            }
            for each in await transactions.undecided()
        ]


async def _decided_batch(namesrv: str, name: str) -> dict[str, Any]:
    async with _batch_transactions(namesrv) as transactions:
        outcome = await transactions.lookup(name)
    if outcome is None:
        raise QueryNotFound(f"batch transaction {name!r} is undecided, or its decision has expired")
    return {
        "transaction": name,
        "decided": local_time(outcome.decided_ms),
        "messages": outcome.messages,
        "visible": outcome.visible,
        "tokens": sorted(outcome.tokens),
    }


async def _shown(namesrv: str, message_id: str) -> dict[str, Any]:
    async with AsyncHalfMessages(namesrv, connections=connections()) as half_messages:
        half = await half_messages.find(message_id)
        message = as_record(await half_messages.content(half))
    # These fields are about the internal topic of half messages and would mislead.
    for name in ("queue_offset", "reconsume_times"):
        del message[name]
    return message | _record(half)


async def _decide(namesrv: str, message_ids: Sequence[str], decision: Decision, *, output: str) -> int:
    """Decide the half messages in order and print each outcome; return the exit code."""
    done, failed = _DONE[decision], False
    async with AsyncHalfMessages(namesrv, connections=connections()) as half_messages:
        for message_id in message_ids:
            outcome: dict[str, Any] = {"message_id": message_id, "outcome": done, "error": None}
            try:
                await half_messages.decide(await half_messages.find(message_id), decision)
            except MQError as error:
                failed = True
                outcome |= {"outcome": "failed", "error": one_line(error)}
            show_outcome(outcome, output, done=f"{message_id}  {done}", refused=f"{message_id} is not {done}")
    return 1 if failed else 0


def _row(half: HalfMessage) -> dict[str, Any]:
    return {
        "message_id": half.message_id,
        "sent": local_time(half.born_ms),
        "producer_group": half.producer_group,
        "topic": half.topic,
        "checks": half.checks,
        "tags": half.tags,
        "keys": half.keys,
    }


def _record(half: HalfMessage) -> dict[str, Any]:
    return {
        "message_id": half.message_id,
        "offset_message_id": half.offset_message_id,
        "producer_group": half.producer_group,
        "topic": half.topic,
        "broker": half.broker_name,
        "queue": half.queue_id,
        "born_time": local_time(half.born_ms),
        "checks": half.checks,
        "size": half.size,
        "tags": half.tags,
        "keys": half.keys,
    }
