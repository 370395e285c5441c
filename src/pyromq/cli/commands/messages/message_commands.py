"""`pyromq message`: finds messages by id, key or offset, and shows their deliveries and traces."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

from pyromq import Admin
from pyromq.cli.cluster_names import TOPIC_NAME
from pyromq.cli.command_tree import Group
from pyromq.cli.commands.messages.consume import as_record
from pyromq.cli.connection_options import connections, namesrv_option, with_admin
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import output_option, show_record, show_rows
from pyromq.cli.times import read_time
from pyromq.client.admin.messages.message_search import PARKED_IN
from pyromq.clock import local_time
from pyromq.errors import QueryNotFound
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import TRACE_TOPIC

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
def message() -> None:
    """Find messages by id or key; show their deliveries and traces."""


def message_id_argument(command: F) -> F:
    """Add `[TOPIC] MESSAGE_ID` and `--topic`. The command gets `message_id` and `topic`, None for all topics."""

    @wraps(command)
    def with_id(words: tuple[str, ...], topic: str | None, **arguments: Any) -> Any:
        if len(words) > 2 or (len(words) == 2 and topic is not None):
            raise click.UsageError("give one message id and at most one topic")
        *first, message_id = words
        if first:
            topic = TOPIC_NAME.convert(first[0], None, click.get_current_context())
        return command(message_id=message_id, topic=topic, **arguments)

    argument = click.argument("words", metavar="[TOPIC] MESSAGE_ID", nargs=-1, required=True)
    option = click.option("-t", "--topic", type=TOPIC_NAME, help="Topic of the message. [default: search all topics]")
    return cast(F, argument(option(with_id)))


@message.command()
@message_id_argument
@with_admin
@output_option
def show(admin: Admin, message_id: str, topic: str | None, output: str) -> int:
    """Show one message, given by unique id, offset id or recall handle.

    The exit code is 1 if its body is damaged.
    """
    found = admin.view(message_id, topic=topic)
    if found.topic in PARKED_IN:
        click.echo(f"{found.topic} is internal: consumers get another copy, once delivered or committed", err=True)
    show_record(_record(found), output)
    return 1 if found.is_damaged else 0


@message.command()
@message_id_argument
@with_admin
@output_option
def tracks(admin: Admin, message_id: str, topic: str | None, output: str) -> None:
    """Show the state of one message in each group that consumes its topic, as known to brokers."""
    found = admin.members.tracks(admin.view(message_id, topic=topic))
    rows = [{"group": group, "state": state.value} for group, state in found.items()]
    show_rows(rows, output, empty="no group consumes the message's topic")


@message.command()
@click.argument("topic", type=TOPIC_NAME)
@click.argument("of_key", metavar="[KEY]", required=False)
@click.option("-k", "--key", help="Messages with this key, which may also follow TOPIC.")
@click.option("--id", "message_id", metavar="ID", help="Messages with this unique id; retries may store several.")
@click.option("-c", "--count", type=WholeNumber(1, 64), default=32, show_default=True, help="Show at most this many.")
@click.option("--begin", type=read_time, metavar="TIME", help="Stored at this time or later.")
@click.option("--end", type=read_time, metavar="TIME", help="Stored at this time or earlier.")
@namesrv_option
@output_option
def find(topic: str, key: str | None, message_id: str | None, namesrv: str, output: str, **choice: Any) -> int:
    """Find messages of TOPIC by key or id. Messages with a damaged body are marked.

    The exit code is 1 if none is found; JSON is an empty array then.
    """
    if [key, choice["of_key"], message_id].count(None) != 2:
        raise click.UsageError("give one key or one --id")
    key = key if key is not None else choice["of_key"]
    begin_ms, end_ms, count = choice["begin"] or 0, choice["end"], choice["count"]
    with Admin(namesrv, connections=connections()) as admin:
        found = admin.query_by_key(topic, key or message_id or "", count, begin_ms=begin_ms, end_ms=end_ms)
        if message_id is not None and not found:
            found = _by_other_id(admin, topic, message_id)
    what = f"key {key!r}" if key is not None else f"id {message_id!r}"
    rows = [_record(each) for each in found]
    if output == "table":
        names = ("message_id", "store_time", "broker", "queue", "queue_offset", "tags", "keys", "damaged")
        rows = [{name: row[name] for name in names} for row in rows]
    elsewhere = f"; `pyromq message show {message_id}` also finds a message that waits for its delivery"
    show_rows(rows, output, empty=f"no message of {topic} has {what}{'' if message_id is None else elsewhere}")
    return 0 if found else 1


@message.command()
@message_id_argument
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Topic of the clients' traces.")
@with_admin
@output_option
def trace(admin: Admin, message_id: str, topic: str | None, trace_topic: str, output: str) -> None:
    """Show the life of a message: sent, stored, delivered, failed, retried, dead-lettered.

    Events come from the brokers' logs, and from traces if clients send them (`MessageTrace` in pyromq, `enableMsgTrace`
    in Java). Events without a time come last.
    """
    life = admin.message_life(message_id, topic, trace_topic=trace_topic)
    rows = [
        {
            "time": local_time(event.time_ms) if event.time_ms is not None else None,
            "what": event.what,
            "who": event.who,
            "detail": event.detail,
        }
        for event in life
    ]
    show_rows(rows, output)


@message.command()
@click.argument("topic", type=TOPIC_NAME)
@click.argument("broker")
@click.argument("queue_id", type=WholeNumber(0))
@click.argument("offset", type=WholeNumber(0))
@with_admin
@output_option
def at(admin: Admin, topic: str, broker: str, queue_id: int, offset: int, output: str) -> int:
    """Show the message at OFFSET of one queue of TOPIC, given by broker name and queue id.

    The exit code is 1 if its body is damaged.
    """
    found = admin.view_at(MessageQueue(topic, broker, queue_id), offset)
    show_record(_record(found), output)
    return 1 if found.is_damaged else 0


def _by_other_id(admin: Admin, topic: str, message_id: str) -> list[StoredMessage]:
    """Return the message with this offset id or recall handle, if it is in the topic."""
    try:
        found = admin.view(message_id, topic)
    except QueryNotFound:
        return []
    return [found] if found.topic == topic else []


def _record(message: StoredMessage) -> dict[str, Any]:
    """Return a message as a JSON record, with `damaged`."""
    return {"damaged": message.is_damaged} | as_record(message)
