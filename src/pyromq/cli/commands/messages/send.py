"""`pyromq send`: one message from the command line, or one for each line of standard input, or a whole file."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

import click
import msgspec

from pyromq import IllegalMessage, Message, MQError, Producer, ProducerConfig, SendResult
from pyromq.cli.cluster_names import TOPIC_NAME
from pyromq.cli.connecting import connections, namespace_option, namesrv_option
from pyromq.cli.progress import Progress
from pyromq.cli.render import as_json, output_option
from pyromq.cli.times import read_duration, read_moment
from pyromq.errors import UnfitBody
from pyromq.excerpt import escaped, excerpt
from pyromq.filter.tags import check_tag
from pyromq.json_body import encode_json
from pyromq.message import RESERVED_PROPERTIES
from pyromq.plural import counted

LINES, KEY_VALUE, JSON = "lines", "key:value", "json"
INPUTS = (LINES, KEY_VALUE, JSON)

GROUP = "pyromq-cli-producer"
STANDARD_INPUT = Path("-")
IN_FLIGHT = 256  # lines without an answer yet: enough to keep the connection busy, few to be unsure of after a failure


def _checked_tag(ctx: click.Context, option: click.Parameter, tag: str | None) -> str | None:
    try:
        if tag is not None:
            check_tag(tag)
    except IllegalMessage as error:
        raise click.BadParameter(str(error)) from error
    return tag


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.argument("body", required=False)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Send a file as one message; - is standard input. With --input: read lines from it.",
)
@click.option(
    "--input",
    "kind",
    type=click.Choice(INPUTS),
    help="What a line is: a body; a key and a body; an object as `consume -o json` prints it. [default: lines]",
)
@click.option("--tags", callback=_checked_tag, metavar="TAG", help="Tag of the messages: one.")
@click.option("--keys", multiple=True, metavar="KEY", help="Key to find the message by; may be repeated.")
@click.option("--ordering-key", metavar="KEY", help="Messages of one key go to one queue, in order.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Free property; may be repeated.")
@click.option("--delay", type=read_duration, metavar="DURATION", help="Deliver after 90s, 10m, 1.5h, 2d, ...")
@click.option("--deliver-at", type=read_moment, metavar="TIME", help="Deliver at 2026-01-31 12:00, or ms since 1970.")
@click.option("--delay-level", type=click.IntRange(1, 18), metavar="LEVEL", help="Deliver after the delay of a level.")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@namesrv_option
@namespace_option
@output_option
def send(
    topic: str, body: str | None, file: Path | None, namesrv: str, group: str, output: str, **options: Any
) -> None:
    """Send BODY to TOPIC.

    Without BODY and --file, every line of standard input is a message; empty lines are passed over. Of an object,
    `body` (what is no text is sent as JSON) or `body_base64`, `tags`, `keys` and `properties` count.
    """
    kind = options["kind"]
    if body is not None and (file is not None or kind is not None):
        raise click.UsageError("give BODY, or --file and --input, not both")
    properties = dict(_pair(text) for text in options["properties"])
    delay = _delay(options)
    ordering_key = options["ordering_key"]

    template = Message(topic, b"", tags=options["tags"], keys=options["keys"], properties=properties, **delay)
    config = ProducerConfig(connections=connections(), namespace=options["namespace"])
    with Producer(group, namesrv, config=config) as producer:
        if body is not None or (file is not None and kind is None):
            content = body.encode() if body is not None else _whole(file)
            result = producer.send(replace(template, body=content), ordering_key=ordering_key)
            _show(result, output)
            _warn_of_no_delay(delay, [result])
            return
        read = line_reader(kind or LINES, template)
        at_once: list[SendResult] = []  # the first that had to wait and does not

        def settled(result: SendResult) -> None:
            if output == "json":
                _show(result, output)
            if result.recall_handle is None and not at_once:
                at_once.append(result)

        with _opened(file) as stream:
            _send_lines(
                stream,
                lambda line: producer.send_soon(read(line), ordering_key=ordering_key),
                settled,
                quiet=output == "json",
            )
        _warn_of_no_delay(delay, at_once)


def _warn_of_no_delay(delay: dict[str, Any], results: list[SendResult]) -> None:
    """Say that messages with a time of delivery do not wait for it: those that wait have a recall handle."""
    if not delay.get("deliver_at") and not delay.get("delay"):
        return
    if any(result.recall_handle is None for result in results):
        why = "its time is past by the broker's clock, or the broker (RocketMQ 4) does not know delivery times"
        click.echo(f"not delayed, delivered at once: {why}", err=True)


def _whole(file: Path | None) -> bytes:
    return sys.stdin.buffer.read() if file is None or file == STANDARD_INPUT else file.read_bytes()


def _opened(file: Path | None) -> AbstractContextManager[IO[bytes]]:
    """Return the stream that lines come from; standard input is left open."""
    return nullcontext(sys.stdin.buffer) if file is None or file == STANDARD_INPUT else file.open("rb")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--property")
    return name, value


def _delay(options: dict[str, Any]) -> dict[str, Any]:
    """Return the one way in which a delay is asked for, if any."""
    names = ("delay", "deliver_at", "delay_level")
    delay = {name: options[name] for name in names if options[name] is not None}
    if len(delay) > 1:
        raise click.UsageError("give one of --delay, --deliver-at and --delay-level")
    return delay


class Lines:
    """The lines of a stream that are messages, each with its number.

    Within its `with` block Ctrl-C ends them as their end would, so that what is on its way still gets its answer; the
    second one is as usual.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stopped = False
        self._stream = stream
        self._reading = False
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *failure: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        if self._stream.isatty() and sys.stderr.isatty():
            click.echo("each line is a message; Ctrl-D ends", err=True)
        for number in count(1):
            line = self._next()
            if not line:
                return
            content = line.rstrip(b"\r\n")
            if content:  # a broker refuses empty bodies
                yield number, content

    def _next(self) -> bytes:
        """Return the next line with its end; nothing after the last one, and after Ctrl-C."""
        try:
            self._reading = True
            return b"" if self.stopped else self._stream.readline()
        except KeyboardInterrupt:
            return b""
        finally:
            self._reading = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Only reading is interrupted: anywhere else a message could be sent and not be counted."""
        again, self.stopped = self.stopped, True
        if again or self._reading:
            raise KeyboardInterrupt


class Confirmations:
    """The answers to messages on their way, and how many of them said yes."""

    def __init__(self) -> None:
        self.count = 0  # those before the first failure
        self._line = 0
        self._pending: deque[tuple[int, Future[SendResult]]] = deque()

    def __len__(self) -> int:
        """How many are on their way."""
        return len(self._pending)

    def add(self, line: int, future: Future[SendResult]) -> None:
        self._pending.append((line, future))

    @property
    def ready(self) -> bool:
        """Whether the next answer is there, or must be waited for before more is sent."""
        return len(self._pending) >= IN_FLIGHT or (bool(self._pending) and self._pending[0][1].done())

    def take(self) -> SendResult:
        """Wait for the next answer, in the order of the lines. Raises what the send raises."""
        line, future = self._pending[0]
        result = future.result()
        self._pending.popleft()
        self.count, self._line = self.count + 1, line
        return result

    def summary(self, *, wait: bool) -> str:
        """Say what is known, so that somebody can go on; with `wait`, wait for the answers that are on their way."""
        behind = unknown = 0
        whole = True
        for line, future in self._pending:
            if not wait and not future.done():
                unknown += 1
                whole = False
            elif not _is_confirmed(future):
                whole = False
            elif whole:
                self.count, self._line = self.count + 1, line
            else:
                behind += 1
        text = f"{counted(self.count, 'message was', 'messages were')} confirmed"
        text += f", up to line {self._line}" if self.count else ""
        text += f", and {behind} behind the first that was not" if behind else ""
        return text + (f"; {unknown} may be stored or not" if unknown else "")


def _send_lines(
    stream: IO[bytes],
    send_soon: Callable[[bytes], Future[SendResult]],
    settled: Callable[[SendResult], None],
    *,
    quiet: bool,
) -> None:
    """Keep some sends in flight, and tell how many there were unless `quiet`.

    The first failure ends it, and so does Ctrl-C, both saying what was confirmed.
    """
    answers = Confirmations()

    def settle() -> None:
        result = answers.take()
        progress.show(answers.count)
        settled(result)

    def tell(*, wait: bool) -> None:
        progress.end()
        typed = "\n" if lines.stopped and sys.stderr.isatty() else ""  # behind the ^C
        click.echo(typed + answers.summary(wait=wait), err=True)

    with Lines(stream) as lines, Progress("sent", beside_output=quiet, typing=stream.isatty()) as progress:
        try:
            for number, content in lines:
                try:
                    answers.add(number, send_soon(content))
                except IllegalMessage as error:
                    raise type(error)(f"line {number}: {error}") from error
                while answers.ready:
                    settle()
            while answers:
                settle()
        except (MQError, KeyboardInterrupt) as error:
            tell(wait=isinstance(error, MQError))
            raise
        if lines.stopped:
            tell(wait=True)
            raise click.Abort
    if not quiet:
        click.echo(f"sent {counted(answers.count, 'message')}")


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
        click.echo(escaped(f"{record['status']}  {record['message_id']}  {place}"))
        if result.recall_handle is not None:
            click.echo(escaped(f"cancel with: pyromq delay cancel {result.recall_handle}"))


class MessageLine(msgspec.Struct):
    """What counts of an object; a body that is no text is sent as JSON."""

    body: Any = msgspec.UNSET
    body_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    tags: str | None = None
    keys: list[str] | str = []
    properties: dict[str, str] = {}

    def __post_init__(self) -> None:
        if (self.body is msgspec.UNSET) == (self.body_base64 is msgspec.UNSET):
            raise ValueError("give one of `body` and `body_base64`")


_decode = msgspec.json.Decoder(MessageLine).decode


def line_reader(kind: str, template: Message) -> Callable[[bytes], Message]:
    """Return what makes a message of a line; what the line does not say is as in the template.

    Raises `UnfitBody` for a line that is not of the kind.
    """
    return {LINES: _of_body, KEY_VALUE: _of_pair, JSON: _of_object}[kind](template)


def _of_body(template: Message) -> Callable[[bytes], Message]:
    return lambda line: replace(template, body=line, properties=dict(template.properties))


def _of_pair(template: Message) -> Callable[[bytes], Message]:
    def read(line: bytes) -> Message:
        key, separator, value = line.partition(b":")
        if not separator:
            raise UnfitBody(f"{line[:100]!r} is not of the form key:value")
        keys = [*template.keys, *key.decode(errors="replace").split()]
        return replace(template, body=value, keys=keys, properties=dict(template.properties))

    return read


def _of_object(template: Message) -> Callable[[bytes], Message]:
    def read(line: bytes) -> Message:
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UnfitBody(
                f"no message in JSON, as `pyromq consume -o json` prints it: {excerpt(str(error))}"
            ) from error
        body = found.body_base64 if isinstance(found.body_base64, bytes) else found.body
        keys = found.keys.split() if isinstance(found.keys, str) else found.keys
        own = {name: value for name, value in found.properties.items() if name not in RESERVED_PROPERTIES}
        return replace(
            template,
            body=body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else encode_json(body),
            tags=found.tags or template.tags,
            keys=[*template.keys, *keys],
            properties=template.properties | own,
        )

    return read
