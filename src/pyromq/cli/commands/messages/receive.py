"""`pyromq receive`: receives single messages in the name of a group (pop), prints them, and acknowledges on request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from pyromq.cli.cluster_names import GROUP_NAME, TOPIC_NAME
from pyromq.cli.command_tree import Command
from pyromq.cli.commands.messages.consume import OutputWatch, as_record, format_option, shown_by
from pyromq.cli.commands.messages.topic_reader import print_waiting
from pyromq.cli.connection_options import connections, namespace_option, namesrv_option
from pyromq.cli.progress_line import ProgressLine
from pyromq.cli.ranges import Seconds, WholeNumber
from pyromq.cli.render import as_json
from pyromq.client.blocking.consumers import SimpleConsumer
from pyromq.client.blocking.sigint import sigterm_interrupts
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.errors import NotRunning, SubscriptionParseFailed
from pyromq.filter.filter import wanted_by
from pyromq.message import StoredMessage

FOLLOW_SECONDS = 15.0  # longest wait of one request while following


@click.command(cls=Command)
@click.argument("topic", type=TOPIC_NAME)
@click.option("-g", "--group", type=GROUP_NAME, required=True, help="Group that receives the messages.")
@click.option("--ack", is_flag=True, help="Acknowledge each message after it is printed. [default: it is redelivered]")
@click.option(
    "-c", "--count", type=WholeNumber(1, sys.maxsize), default=1, show_default=True, help="Number of messages."
)
@click.option("-F", "--follow", is_flag=True, help="Receive messages until Ctrl-C, without --count.")
@click.option("--wait", type=Seconds(0, 3600), default=5.0, show_default=True, help="Seconds to wait for a message.")
@click.option(
    "--invisible",
    type=Seconds(1, 12 * 3600),
    default=30.0,
    show_default=True,
    help="Seconds until a message without --ack is redelivered.",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["beginning", "end"]),
    default="beginning",
    show_default=True,
    help="Start of a group that has received nothing yet; a young queue begins at its first message even with `end`.",
)
@click.option("--tags", default="*", show_default=True, help="Only messages with these tags: `a || b`.")
@click.option("--sql", metavar="EXPRESSION", help="Only messages that match: `price > 5 AND region = 'EU'`.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@format_option
@namesrv_option
@namespace_option
def receive(topic: str, group: str, ack: bool, namesrv: str, output: str, **choice: Any) -> int:
    """Receive messages of TOPIC for a group, one by one, and print them.

    A received message is invisible to the group's other members. Without --ack it is redelivered after --invisible,
    with one attempt more, and in the end becomes a dead letter. A group that receives must not also consume with
    listeners. The exit code is 1 if no message arrives within --wait. The broker must be pyromq's or RocketMQ 5's.
    """
    show = _show_json if output == "json" and choice["form"] is None else shown_by(choice["form"], output)
    chosen = {"tags": choice["tags"], "sql": choice["sql"]}
    try:
        wanted_by(**chosen)
    except SubscriptionParseFailed as error:
        raise click.UsageError(str(error)) from error
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST if choice["start"] == "beginning" else ConsumeFrom.LAST,
        connections=connections(waits=choice["follow"]),
        namespace=choice["namespace"],
        deliver_undecodable=True,  # undecodable messages are reported
    )
    received = unprinted = 0
    with (
        sigterm_interrupts(),
        SimpleConsumer(group, namesrv, config=config) as consumer,
    ):
        consumer.subscribe(topic, **chosen)
        if choice["follow"]:
            print_waiting()
        count = None if choice["follow"] else choice["count"]
        messages = _received(consumer, choice, count)
        with OutputWatch(consumer.close), ProgressLine("received", beside_output=True) as progress:
            for received, message in enumerate(messages, 1):
                is_printed = show(message)
                unprinted += not is_printed
                progress.show(received)
                if ack and is_printed:
                    consumer.ack(message)
                elif ack:
                    click.echo("it is not acknowledged; -o json prints its stored bytes", err=True)
    if not received:
        click.echo(f"no message of {topic} for group {group} within {choice['wait']:g} s", err=True)
    return 0 if received and not (ack and unprinted) else 1


def _received(consumer: SimpleConsumer, choice: dict[str, Any], count: int | None) -> Iterator[StoredMessage]:
    """Yield received messages, at most `count` (None: until the consumer is closed)."""
    left = count
    while left is None or left > 0:
        wait = FOLLOW_SECONDS if count is None else choice["wait"]
        try:
            messages = consumer.receive(left or 32, wait_seconds=wait, invisible_seconds=choice["invisible"])
        except NotRunning:
            return
        if not messages and count is not None:
            return
        yield from messages
        left = None if left is None else left - len(messages)


def _show_json(message: StoredMessage) -> bool:
    click.echo(as_json(as_record(message) | {"receipt_handle": message.receipt_handle}))
    return True
