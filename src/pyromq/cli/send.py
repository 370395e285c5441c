"""`pyromq send`: one message from the command line, or one for each line of standard input, or a whole file."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click

from pyromq import Message, MQError, Producer, SendResult
from pyromq.cli.progress import Progress
from pyromq.cli.render import as_json, namesrv_option, output_option
from pyromq.cli.times import read_duration, read_moment

GROUP = "pyromq-cli-producer"
IN_FLIGHT = 256  # lines without an answer yet: enough to keep the connection busy, few to be unsure of after a failure


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Send a file as one message."
)
@click.option("--tags", metavar="TAG", help="Tag of the messages.")
@click.option("--keys", multiple=True, metavar="KEY", help="Key to find the message by; may be repeated.")
@click.option("--ordering-key", metavar="KEY", help="Messages of one key go to one queue, in order.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Free property; may be repeated.")
@click.option("--delay", type=read_duration, metavar="DURATION", help="Deliver after 90s, 10m, 1.5h, 2d, ...")
@click.option("--deliver-at", type=read_moment, metavar="TIME", help="Deliver at 2026-01-31 12:00, or ms since 1970.")
@click.option("--delay-level", type=click.IntRange(1), metavar="LEVEL", help="Deliver after the delay of a level.")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@namesrv_option
@output_option
def send(
    topic: str, body: str | None, file: Path | None, namesrv: str, group: str, output: str, **options: Any
) -> None:
    """Send BODY to TOPIC.

    Without BODY and --file, every line of standard input is a message; empty lines are passed over.
    """
    if body is not None and file is not None:
        raise click.UsageError("give BODY or --file, not both")
    properties = dict(_pair(text) for text in options["properties"])
    wish = _wish(options)
    ordering_key = options["ordering_key"]

    def make(content: bytes) -> Message:
        return Message(topic, content, tags=options["tags"], keys=options["keys"], properties=dict(properties), **wish)

    content = file.read_bytes() if file is not None else body.encode() if body is not None else None
    with Producer(group, namesrv) as producer:
        if content is not None:
            _show(producer.send(make(content), ordering_key=ordering_key), output)
            return
        futures = (producer.send_soon(make(line), ordering_key=ordering_key) for line in _lines())
        _send_lines(futures, (lambda result: _show(result, output)) if output == "json" else None)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--property")
    return name, value


def _wish(options: dict[str, Any]) -> dict[str, Any]:
    """Return the one way in which a delay is asked for, if any."""
    names = ("delay", "deliver_at", "delay_level")
    wish = {name: options[name] for name in names if options[name] is not None}
    if len(wish) > 1:
        raise click.UsageError("give one of --delay, --deliver-at and --delay-level")
    return wish


def _lines() -> Iterator[bytes]:
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.echo("each line is a message; Ctrl-D ends", err=True)
    for line in sys.stdin.buffer:
        content = line.rstrip(b"\r\n")
        if content:  # a broker refuses empty bodies
            yield content


def _send_lines(futures: Iterable[Future[SendResult]], show: Callable[[SendResult], None] | None) -> None:
    """Keep some sends in flight; the first failure ends it, saying how many were confirmed."""
    pending: deque[Future[SendResult]] = deque()
    confirmed = 0

    def settle() -> None:
        nonlocal confirmed
        result = pending.popleft().result()
        confirmed += 1
        progress.show(confirmed)
        if show is not None:
            show(result)

    with Progress("sent", beside_output=show is not None) as progress:
        try:
            for future in futures:
                pending.append(future)
                while len(pending) >= IN_FLIGHT or (pending and pending[0].done()):
                    settle()
            while pending:
                settle()
        except (MQError, KeyboardInterrupt) as error:
            if isinstance(error, MQError):
                confirmed += sum(map(_is_confirmed, pending))
            click.echo(f"{confirmed} messages were confirmed", err=True)
            raise
    if show is None:
        click.echo(f"sent {confirmed} messages")


def _is_confirmed(future: Future[SendResult]) -> bool:
    try:
        future.result()
    except MQError:
        return False
    return True


def _show(result: SendResult, output: str) -> None:
    record = {
        "status": result.status.value,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "queue_offset": result.queue_offset,
        "recall_handle": result.recall_handle,
    }
    if output == "json":
        click.echo(as_json(record))
    else:
        place = f"{record['broker']} queue {record['queue']} offset {record['queue_offset']}"
        click.echo(f"{record['status']}  {record['message_id']}  {place}")
        if result.recall_handle is not None:
            click.echo(f"cancel with: pyromq delay cancel {result.recall_handle}")
