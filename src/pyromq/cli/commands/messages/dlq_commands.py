"""`pyromq dlq`: lists, shows and redrives dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

import click

from pyromq import Admin
from pyromq.cli.cluster_names import GROUP_NAME
from pyromq.cli.command_tree import Group
from pyromq.cli.commands.messages.consume import as_record
from pyromq.cli.connection_options import connections, namesrv_option
from pyromq.cli.ranges import WholeNumber, read_rate
from pyromq.cli.render import one_line, output_option, show_outcome, show_record, show_rows
from pyromq.cli.times import read_time
from pyromq.client.admin.messages.dead_letters import (
    AsyncDeadLetters,
    DeadLetter,
    DeadLetterFilter,
    Fate,
    Redriven,
    RedriveOrder,
)
from pyromq.clock import local_time
from pyromq.errors import GroupNotFound

F = TypeVar("F", bound=Callable[..., Any])

REASON_WIDTH = 60  # limit of terminal columns for a reason in the table; `show` and JSON have the whole text


@click.group(cls=Group)
def dlq() -> None:
    """List, show and redrive dead letters.

    After too many failed attempts a message is moved to topic %DLQ%GROUP, where it stays until retention deletes it.
    """


def filter_options(command: F) -> F:
    """Add the options that select dead letters, named as `DeadLetterFilter`'s fields."""
    options = [
        click.option("--id", "ids", multiple=True, metavar="ID", help="Only this message; may be repeated."),
        click.option("-t", "--topic", metavar="TOPIC", help="Only messages of this original topic."),
        click.option("--tag", metavar="TAG", help="Only messages with this tag."),
        click.option("-k", "--key", metavar="KEY", help="Only messages with this key."),
        click.option("--reason", metavar="TEXT", help="Only messages whose reason contains TEXT, case ignored."),
        click.option("--begin", "since_ms", type=read_time, metavar="TIME", help="Dead letters since this time."),
        click.option("--end", "until_ms", type=read_time, metavar="TIME", help="Dead letters up to this time."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dlq.command("list")
@click.argument("group", type=GROUP_NAME, required=False)
@filter_options
@click.option("-c", "--count", type=WholeNumber(1), default=100, show_default=True, help="Show at most N.")
@namesrv_option
@output_option
def list_letters(group: str | None, count: int, namesrv: str, output: str, **choice: Any) -> None:
    """List the dead letters of GROUP. Without GROUP, list the groups that have dead letters."""
    if group is None:
        if any(choice.values()):
            raise click.UsageError("options that select messages need GROUP")
        rows = asyncio.run(_counts(namesrv))
        show_rows(rows, output, empty="no group has dead letters")
        return
    letters = asyncio.run(_letters(namesrv, group, _filter(choice)))
    if not letters:
        _check_known(namesrv, group)
    chosen = sorted(letters, key=lambda letter: letter.message.store_ms)
    show_rows(
        [_row(letter, output) for letter in chosen[:count]], output, empty=f"group {group} has no such dead letter"
    )
    if len(chosen) > count:
        click.echo(f"{len(chosen) - count} more; --count N shows up to N", err=True)


@dlq.command()
@click.argument("group", type=GROUP_NAME)
@click.argument("message_id")
@namesrv_option
@output_option
def show(group: str, message_id: str, namesrv: str, output: str) -> None:
    """Show one dead letter of GROUP: its original topic, the reason, and when it was redriven."""
    show_record(asyncio.run(_explained(namesrv, group, message_id)), output)


@dlq.command()
@click.argument("group", type=GROUP_NAME)
@filter_options
@click.option("--all", "everything", is_flag=True, help="Redrive every dead letter of the group.")
@click.option("--to-origin", is_flag=True, help="Send to the original topics; other groups receive duplicates.")
@click.option("--to", "to_topic", metavar="TOPIC", help="Send to this topic. [default: GROUP's retry topic]")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, without sending.")
@click.option("--rate", "per_second", type=read_rate, metavar="N", help="At most N a second.")
@click.option("-c", "--count", "most", type=WholeNumber(1), help="Send at most N.")
@click.option("--again", is_flag=True, help="Include dead letters that were redriven before.")
@namesrv_option
@output_option
def redrive(group: str, everything: bool, namesrv: str, output: str, **choice: Any) -> int:
    """Resend dead letters of GROUP with their attempts reset to 0, and print the outcome of each.

    Dead letters stay in their topic; later runs skip those already resent. JSON is one object a line. The exit code is
    1 if a message could not be sent.
    """
    order = RedriveOrder(**{name: choice.pop(name) for name in _ORDER})
    if not everything and not any(choice.values()):
        raise click.UsageError(
            "select messages with --id, --topic, --tag, --key, --reason, --begin or --end, or give --all"
        )
    fates = asyncio.run(_redrive(namesrv, group, _filter(choice), order=order, output=output))
    if not fates:
        _check_known(namesrv, group)
    click.echo(", ".join(f"{count} {fate.value}" for fate, count in fates.items()) or "no messages to send", err=True)
    return 1 if fates[Fate.FAILED] else 0


_ORDER = ("to_origin", "to_topic", "dry_run", "per_second", "most", "again")


def _filter(choice: dict[str, Any]) -> DeadLetterFilter:
    return DeadLetterFilter(**choice | {"ids": frozenset(choice["ids"]), "since_ms": choice["since_ms"] or 0})


def _check_known(namesrv: str, group: str) -> None:
    """Raise `GroupNotFound` for a group without settings, which also has no dead letters."""
    with Admin(namesrv, connections=connections()) as admin:
        if not admin.group_configs(group):
            raise GroupNotFound(f"group {group} does not exist")


async def _counts(namesrv: str) -> list[dict[str, Any]]:
    async with AsyncDeadLetters(namesrv, connections=connections()) as dead_letters:
        return [{"group": each.group, "dead_letters": each.count} for each in await dead_letters.counts()]


async def _letters(namesrv: str, group: str, wanted: DeadLetterFilter) -> list[DeadLetter]:
    async with (
        AsyncDeadLetters(namesrv, connections=connections()) as dead_letters,
        aclosing(dead_letters.letters(group, wanted)) as letters,
    ):
        return [letter async for letter in letters]


def _row(letter: DeadLetter, output: str) -> dict[str, Any]:
    message, reason = letter.message, letter.reason
    if output == "json":
        return _origin(letter) | as_record(message)
    if reason is not None and len(reason) > REASON_WIDTH:
        reason = reason[: REASON_WIDTH - 1] + "…"
    return {
        "message_id": message.message_id,
        "died": local_time(message.store_ms),
        "original_topic": letter.original_topic,
        "attempts": letter.attempts,
        "tags": message.tags,
        "keys": message.keys,
        "reason": reason,
    }


def _origin(letter: DeadLetter) -> dict[str, Any]:
    return {
        "group": letter.group,
        "original_topic": letter.original_topic,
        "reason": letter.reason,
        "attempts": letter.attempts,
    }


async def _explained(namesrv: str, group: str, message_id: str) -> dict[str, Any]:
    async with AsyncDeadLetters(namesrv, connections=connections()) as dead_letters:
        letter = await dead_letters.find(group, message_id)
        topics = [*letter.retry_topics, *([letter.original_topic] if letter.original_topic else [])]
        copies = [copy for topic in topics for copy in await dead_letters.copies(letter, topic)]
    sent = [{"topic": copy.topic, "time": local_time(copy.store_ms)} for copy in copies if copy.reconsume_times == 0]
    return _origin(letter) | {"redriven": sent} | as_record(letter.message)


async def _redrive(
    namesrv: str, group: str, wanted: DeadLetterFilter, *, order: RedriveOrder, output: str
) -> Counter[Fate]:
    fates: Counter[Fate] = Counter()
    async with (
        AsyncDeadLetters(namesrv, connections=connections()) as dead_letters,
        aclosing(dead_letters.redrive(group, wanted, order)) as outcomes,
    ):
        async for outcome in outcomes:
            fates[outcome.fate] += 1
            message_id = outcome.letter.message.message_id
            show_outcome(_outcome(outcome), output, done=_line(outcome), refused=f"{message_id} is not sent")
    return fates


def _outcome(outcome: Redriven) -> dict[str, Any]:
    message = outcome.letter.message
    return {
        "message_id": message.message_id,
        "dead_letter_id": message.offset_message_id,
        "outcome": outcome.fate.value,
        "destination": outcome.destination,
        "broker": outcome.queue.broker_name if outcome.queue else None,
        "queue": outcome.queue.queue_id if outcome.queue else None,
        "queue_offset": outcome.queue_offset,
        "error": one_line(outcome.error) if outcome.error else None,
    }


def _line(outcome: Redriven) -> str:
    text = f"{outcome.letter.message.message_id}  {outcome.fate.value}"
    if outcome.destination is not None:
        text += f" to {outcome.destination}"
    if outcome.queue is not None:
        text += f" at {outcome.queue.broker_name} queue {outcome.queue.queue_id} offset {outcome.queue_offset}"
    return text
