"""`pyromq send`: one message from the command line, or one for each line of standard input, or a whole file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click

from pyromq.cli.progress import Progress
from pyromq.cli.render import namesrv_option, output_option
from pyromq.client.blocking import Producer
from pyromq.message import Message, SendResult

GROUP = "pyromq-cli-producer"


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Send a file as one message."
)
@click.option("--tags", help="Tag of the messages.")
@click.option("--keys", multiple=True, help="Key to find the message by; may be repeated.")
@click.option("--ordering-key", help="Messages of one key go to one queue, in order.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Free property; may be repeated.")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@namesrv_option
@output_option
def send(
    topic: str, body: str | None, file: Path | None, namesrv: str, group: str, output: str, **message: Any
) -> None:
    """Send BODY to TOPIC. Without BODY and --file, every line of standard input is a message."""
    if body is not None and file is not None:
        raise click.UsageError("give BODY or --file, not both")
    properties = dict(_pair(text) for text in message["properties"])

    def make(content: bytes) -> Message:
        return Message(topic, content, tags=message["tags"], keys=message["keys"], properties=dict(properties))

    with Producer(group, namesrv) as producer:
        if body is not None or file is not None:
            content = body.encode() if body is not None else file.read_bytes()  # type: ignore[union-attr]  # one is given
            _show(producer.send(make(content), ordering_key=message["ordering_key"]), output)
        else:
            _send_lines(producer, make, message["ordering_key"], output)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--property")
    return name, value


def _send_lines(producer: Producer, make: Any, ordering_key: str | None, output: str) -> None:
    """Keep many sends in flight; stop at the first that fails, saying how many were confirmed before."""
    pending: list[Future[SendResult]] = []
    confirmed = 0
    with Progress("sent") as progress:
        try:
            for line in _lines():
                pending.append(producer.send_soon(make(line), ordering_key=ordering_key))
                if len(pending) >= 256:
                    confirmed += _settle(pending, output)
                    progress.show(confirmed)
            confirmed += _settle(pending, output)
        except BaseException:
            click.echo(f"{confirmed} messages were confirmed before the failure", err=True)
            raise
        progress.show(confirmed)
    if output == "table":
        click.echo(f"sent {confirmed} messages")


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        content = line.rstrip(b"\r\n")
        if content:  # a broker refuses empty bodies
            yield content


def _settle(pending: list[Future[SendResult]], output: str) -> int:
    results = [future.result() for future in pending]
    pending.clear()
    if output == "json":
        for result in results:
            _show(result, output)
    return len(results)


def _show(result: SendResult, output: str) -> None:
    record = {
        "status": result.status.value,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "queue_offset": result.queue_offset,
    }
    if output == "json":
        click.echo(json.dumps(record))
    else:
        place = f"{record['broker']} queue {record['queue']} offset {record['queue_offset']}"
        click.echo(f"{record['status']}  {record['message_id']}  {place}")
