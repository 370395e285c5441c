"""`pyromq send`: sends one message, a whole file, or one message for each line of input."""

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
from pyromq.cli.command_tree import Command
from pyromq.cli.connection_options import connections, namespace_option, namesrv_option
from pyromq.cli.progress_line import ProgressLine
from pyromq.cli.ranges import ANY_TEXT, WholeNumber
from pyromq.cli.render import as_json, output_option
from pyromq.cli.times import read_duration, read_moment
from pyromq.errors import UnfitBody
from pyromq.excerpt import escaped, excerpt
from pyromq.filter.filter import check_tag
from pyromq.json_body import encode_json
from pyromq.message import RESERVED_PROPERTIES
from pyromq.plural import counted

LINES, KEY_VALUE, JSON = "lines", "key:value", "json"
INPUTS = (LINES, KEY_VALUE, JSON)

GROUP = "pyromq-cli-producer"
STANDARD_INPUT = Path("-")
IN_FLIGHT = 256  # limit of unconfirmed sends: the connection stays busy, and few sends are uncertain after a failure


def _checked_tag(ctx: click.Context, option: click.Parameter, tag: str | None) -> str | None:
    try:
        if tag is not None:
            check_tag(tag)
    except IllegalMessage as error:
        raise click.BadParameter(str(error)) from error
    return tag


@click.command(cls=Command)
@click.argument("topic", type=TOPIC_NAME)
@click.argument("body", required=False, type=ANY_TEXT)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Send a file as one message; - is standard input. With --input: each line is a message.",
)
@click.option(
    "--input",
    "kind",
    type=click.Choice(INPUTS),
    help="Format of a line: a body; a key and a body; an object as `consume -o json` prints it. [default: lines]",
)
@click.option("--tags", callback=_checked_tag, metavar="TAG", help="The tag of the messages.")
@click.option("-k", "--keys", multiple=True, metavar="KEY", help="Key for searches; may be repeated.")
@click.option("--ordering-key", metavar="KEY", help="Messages with the same key go to one queue, in order.")
@click.option(
    "-H", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="User property; may be repeated."
)
@click.option("--delay", type=read_duration, metavar="DURATION", help="Deliver after 90s, 10m, 1.5h, 2d, ...")
@click.option("--deliver-at", type=read_moment, metavar="TIME", help="Deliver at 2026-01-31 12:00, or ms since 1970.")
@click.option("--delay-level", type=WholeNumber(1, 18), metavar="LEVEL", help="Deliver after the delay of this level.")
@click.option("-g", "--group", default=GROUP, show_default=True, help="Producer group.")
@namesrv_option
@namespace_option
@output_option
def send(
    topic: str, body: str | None, file: Path | None, namesrv: str, group: str, output: str, **options: Any
) -> None:
    """Send BODY to TOPIC.

    Without BODY and --file, every line of standard input is a message; empty lines are skipped. Of a JSON object these
    fields are read: `body` (sent as JSON unless it is a string) or `body_base64`, `tags`, `keys`, `properties` and
    `ordering_key`. Other fields of `consume -o json` are ignored; a field with any other name ends the sending.
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
        not_delayed: list[SendResult] = []  # the first without recall handle, for the warning

        def send_soon(line: bytes) -> Future[SendResult]:
            message, own_key = read(line)
            return producer.send_soon(message, ordering_key=own_key if own_key is not None else ordering_key)

        def settled(result: SendResult) -> None:
            if output == "json":
                _show(result, output)
            if result.recall_handle is None and not not_delayed:
                not_delayed.append(result)

        with _opened(file) as stream:
            _send_lines(stream, send_soon, settled, quiet=output == "json")
        _warn_of_no_delay(delay, not_delayed)


def _warn_of_no_delay(delay: dict[str, Any], results: list[SendResult]) -> None:
    """Warn if messages with a delivery time are delivered immediately.

    The broker returns a recall handle only for a scheduled message.
    """
    if not delay.get("deliver_at") and not delay.get("delay"):
        return
    if any(result.recall_handle is None for result in results):
        why = "the broker's clock is past the delivery time, or the broker (RocketMQ 4) does not support delivery times"
        click.echo(f"not delayed, delivered at once: {why}", err=True)


def _whole(file: Path | None) -> bytes:
    return sys.stdin.buffer.read() if file is None or file == STANDARD_INPUT else file.read_bytes()


def _opened(file: Path | None) -> AbstractContextManager[IO[bytes]]:
    """Return the input stream. Standard input stays open."""
    return nullcontext(sys.stdin.buffer) if file is None or file == STANDARD_INPUT else file.open("rb")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--property")
    return name, value


def _delay(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given delay option, if any, as an argument of `Message`."""
    names = ("delay", "deliver_at", "delay_level")
    delay = {name: options[name] for name in names if options[name] is not None}
    if len(delay) > 1:
        raise click.UsageError("give one of --delay, --deliver-at and --delay-level")
    return delay


class InputLines:
    """The non-empty lines of a stream, each with its number.

    Inside its `with` block Ctrl-C and SIGTERM end the input, so that messages in flight are still confirmed. A second
    Ctrl-C raises `KeyboardInterrupt` anywhere.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stopped = False
        self._stream = stream
        self._reading = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        if self._stream.isatty() and sys.stderr.isatty():
            click.echo("each line is a message; stop with Ctrl-D", err=True)
        for number in count(1):
            line = self._next()
            if not line:
                return
            content = line.rstrip(b"\r\n")
            if content:  # brokers refuse empty bodies
                yield number, content

    def _next(self) -> bytes:
        """Return the next line with its line end; empty bytes at the end of input and after a signal."""
        try:
            self._reading = True
            return b"" if self.stopped else self._stream.readline()
        except KeyboardInterrupt:
            return b""
        finally:
            self._reading = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Interrupt reading only: elsewhere, a message could be sent without being counted."""
        again, self.stopped = self.stopped, True
        if self._reading or (again and number == signal.SIGINT):  # clients delay SIGINT to a safe place, not SIGTERM
            raise KeyboardInterrupt


class PendingSends:
    """Sends in flight, in the order of their lines, and the number of confirmed ones."""

    def __init__(self) -> None:
        self.count = 0  # number of confirmed sends before the first failure
        self._line = 0
        self._pending: deque[tuple[int, Future[SendResult]]] = deque()

    def __len__(self) -> int:
        """Return the number of sends in flight."""
        return len(self._pending)

    def add(self, line: int, future: Future[SendResult]) -> None:
        self._pending.append((line, future))

    @property
    def ready(self) -> bool:
        """Whether to take the next result now: the result has arrived, or the limit `IN_FLIGHT` is reached."""
        return len(self._pending) >= IN_FLIGHT or (bool(self._pending) and self._pending[0][1].done())

    def take(self) -> SendResult:
        """Wait for the result of the first send in flight. Raises the error of that send."""
        line, future = self._pending[0]
        result = future.result()
        self._pending.popleft()
        self.count, self._line = self.count + 1, line
        return result

    def confirmed(self) -> Iterator[SendResult]:
        """Yield the results of sends in flight that are confirmed by now."""
        yield from (future.result() for _, future in self._pending if future.done() and _is_confirmed(future))

    def summary(self, *, wait: bool) -> str:
        """Return a sentence with the number of confirmed messages and their last line, to resume from.

        With `wait`, wait for all sends in flight.
        """
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
        text += f", up to line {self._line:,}" if self.count else ""
        text += f", and {behind} behind the first that was not" if behind else ""
        return text + (f"; {unknown} may be stored or not" if unknown else "")


def _send_lines(
    stream: IO[bytes],
    send_soon: Callable[[bytes], Future[SendResult]],
    settled: Callable[[SendResult], None],
    *,
    quiet: bool,
) -> None:
    """Send each line, with up to `IN_FLIGHT` sends in flight; print the number of messages unless `quiet`.

    The first failure and Ctrl-C end the sending, and the number of confirmed messages is printed.
    """
    pending = PendingSends()

    def settle() -> None:
        result = pending.take()
        progress.show(pending.count)
        settled(result)

    def print_summary(*, wait: bool) -> None:
        progress.end()
        text = pending.summary(wait=wait)
        for result in pending.confirmed():
            settled(result)
        typed = "\n" if lines.stopped and sys.stderr.isatty() else ""  # the terminal shows ^C on this line
        click.echo(typed + text, err=True)

    with InputLines(stream) as lines, ProgressLine("sent", beside_output=quiet, typing=stream.isatty()) as progress:
        try:
            for number, content in lines:
                try:
                    pending.add(number, send_soon(content))
                except IllegalMessage as error:
                    raise type(error)(f"line {number}: {error}") from error
                while pending.ready:
                    settle()
            while pending:
                settle()
        except (MQError, KeyboardInterrupt) as error:
            print_summary(wait=isinstance(error, MQError))
            raise
        if lines.stopped:
            print_summary(wait=True)
            raise click.Abort
    if not quiet:
        click.echo(f"sent {counted(pending.count, 'message')}")


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


class MessageLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of JSON: a message to send, or a message as commands print it with `-o json`.

    An unknown field is refused: a misspelt or unsupported one would be lost unnoticed.
    """

    body: Any = msgspec.UNSET  # sent as JSON unless it is a string
    body_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    tags: str | None = None
    keys: list[str] | str = []
    properties: dict[str, str] = {}
    ordering_key: str | None = None

    # Printed by `consume`, `receive`, `message`, `dlq`, `transaction show` and `store dump`, and not part of the copy.
    topic: Any = None
    broker: Any = None
    queue: Any = None
    queue_offset: Any = None
    log_offset: Any = None
    size: Any = None
    message_id: Any = None
    offset_message_id: Any = None
    born_time: Any = None
    born_host: Any = None
    store_time: Any = None
    sys_flag: Any = None
    reconsume_times: Any = None
    receipt_handle: Any = None
    damaged: Any = None
    group: Any = None
    producer_group: Any = None
    checks: Any = None
    original_topic: Any = None
    attempts: Any = None
    reason: Any = None
    redriven: Any = None
    fault: None = None  # a damaged record of `store dump` is refused

    def __post_init__(self) -> None:
        if (self.body is msgspec.UNSET) == (self.body_base64 is msgspec.UNSET):
            raise ValueError("give one of `body` and `body_base64`")
        if self.damaged:
            raise ValueError("the message is damaged: its body is not what was sent")


_decode = msgspec.json.Decoder(MessageLine).decode

_Reader = Callable[[bytes], tuple[Message, str | None]]


def line_reader(kind: str, template: Message) -> _Reader:
    """Return a function that turns a line into a message and the line's own ordering key.

    The template gives everything that is not in the line. The function raises `UnfitBody` for a line in another format.
    """
    return {LINES: _of_body, KEY_VALUE: _of_pair, JSON: _of_object}[kind](template)


def _of_body(template: Message) -> _Reader:
    return lambda line: (replace(template, body=line, properties=dict(template.properties)), None)


def _of_pair(template: Message) -> _Reader:
    def read(line: bytes) -> tuple[Message, None]:
        key, separator, value = line.partition(b":")
        if not separator:
            raise UnfitBody(f"{_quoted(line)} is not of the form key:value")
        try:
            keys = [*template.keys, *key.decode().split()]
        except UnicodeDecodeError as error:
            raise UnfitBody(f"key {_quoted(key)} is not UTF-8; correct the encoding of the input") from error
        return replace(template, body=value, keys=keys, properties=dict(template.properties)), None

    return read


def _quoted(line: bytes) -> str:
    """Return a part of the input for an error: on one line, with escapes for bytes that are not UTF-8."""
    return f"'{excerpt(line.decode(errors='backslashreplace'), 100)}'"


def _of_object(template: Message) -> _Reader:
    def read(line: bytes) -> tuple[Message, str | None]:
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UnfitBody(
                f"the line is not a message in JSON, as `pyromq consume -o json` prints it: {excerpt(str(error))}"
            ) from error
        body = found.body_base64 if isinstance(found.body_base64, bytes) else found.body
        keys = found.keys.split() if isinstance(found.keys, str) else found.keys
        own = {name: value for name, value in found.properties.items() if name not in RESERVED_PROPERTIES}
        message = replace(
            template,
            body=body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else encode_json(body),
            tags=found.tags or template.tags,
            keys=[*template.keys, *keys],
            properties=template.properties | own,
        )
        return message, found.ordering_key

    return read
