"""`pyromq consume`: prints a topic's messages from a given start, or the newest ones.

Existing messages are merged over the queues in order of store time; new messages are printed as they arrive. Without
`--group` no offsets are committed. With `--group` the command is a member of that group, which shares the queues, and
commits the offsets of printed messages.
"""

from __future__ import annotations

import errno
import re
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self

import click

from pyromq.cli.cluster_names import GROUP_NAME, TOPIC_NAME
from pyromq.cli.command_tree import Command
from pyromq.cli.commands.messages.topic_reader import MAX_LAST, TopicReader, print_waiting
from pyromq.cli.connection_options import connections, namespace_option, namesrv_option
from pyromq.cli.progress_line import ProgressLine
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import as_json, one_line
from pyromq.cli.times import END, Start, read_start, read_time
from pyromq.client.blocking.consumers import PullConsumer
from pyromq.client.blocking.sigint import sigterm_interrupts
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig, Damaged
from pyromq.clock import local_time
from pyromq.errors import NotRunning, SubscriptionParseFailed, UndecodableBody, UsageError
from pyromq.excerpt import escaped
from pyromq.filter.filter import check_tag_words, looks_like_sql, wanted_by
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import TOOLS_GROUP
from pyromq.platforms import platform

FIELDS: dict[str, tuple[str, Callable[[StoredMessage], str | bytes]]] = {
    "v": ("body", lambda message: message.body),
    "k": ("keys, separated by spaces", lambda message: " ".join(message.keys)),
    "g": ("tag", lambda message: message.tags or ""),
    "t": ("topic", lambda message: message.topic),
    "b": ("broker", lambda message: message.broker_name),
    "q": ("queue", lambda message: str(message.queue_id)),
    "o": ("queue offset", lambda message: str(message.queue_offset)),
    "i": ("message id", lambda message: message.message_id),
    "T": ("time it was stored, ISO 8601", lambda message: _time(message.store_ms)),
    "S": ("bytes of the body", lambda message: str(len(message.body))),
    "r": ("failed attempts", lambda message: str(message.reconsume_times)),
}
_LIST = ", ".join(f"%{letter} {text}" for letter, (text, _) in FIELDS.items())
HELP = _LIST + r", %{NAME} property, %% percent, \n \t \0"

_PART = re.compile(r"%(?:(%)|([a-zA-Z])|\{([^}]+)\})|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

FieldReader = Callable[[StoredMessage], str | bytes]


_ESCAPED_ON_TERMINALS = re.compile(r"[^\n\t\x20-\x7e]")  # `escaped` leaves printable characters beyond ASCII alone
# Time between commits: at most the messages of this time are redelivered if a member is killed.
MEMBER_COMMIT_SECONDS = 1.0


def _has_field(ctx: click.Context, option: click.Parameter, form: str | None) -> str | None:
    """Refuse a format without a field, which would print the same for each message: `-f orders`, as in `tail -f`."""
    if form is not None and not re.search(r"[%\\]", form):
        raise click.BadParameter(f"{form!r} is not a format, such as '%k %v\\n'; to follow a topic write -F (--follow)")
    return form


format_option = click.option(
    "-f", "--format", "form", metavar="TEXT", callback=_has_field, help=f"Print each message in this format: {HELP}."
)


@click.command(cls=Command)
@click.argument("topic", type=TOPIC_NAME)
@click.option(
    "--from",
    "start",
    type=read_start,
    default="end",
    show_default=True,
    metavar="beginning|end|TIME|OFFSET",
    help="Start; a time is 10m (ago) or 2026-01-31 12:00, an offset applies to every queue.",
)
@click.option(
    "-l",
    "--last",
    type=WholeNumber(1, MAX_LAST),
    help="Print the newest N messages since --from, over all queues, the newest last; then stop.",
)
@click.option("-F", "--follow", is_flag=True, help="After --last: print new messages as they arrive.")
@click.option("--until", type=read_time, metavar="now|TIME", help="Stop at this store time. [default: never]")
@click.option("-c", "--count", type=WholeNumber(1, sys.maxsize), help="Stop after this many messages.")
@click.option("--tags", default="*", show_default=True, help="Only messages with these tags: `a || b`.")
@click.option("--sql", metavar="EXPRESSION", help="Only messages that match: `price > 5 AND region = 'EU'`.")
@click.option(
    "-q",
    "--queue",
    "queue_ids",
    type=WholeNumber(0),
    multiple=True,
    metavar="ID",
    help="Only this queue; may be repeated.",
)
@click.option(
    "-g",
    "--group",
    type=GROUP_NAME,
    help="Join this group: its members share the queues, and offsets are committed. --from then applies to queues "
    "without an offset of the group.",
)
@click.option(
    "--damaged",
    type=click.Choice([each.value.replace(" ", "-") for each in Damaged]),
    default="skip",
    show_default=True,
    help="On a damaged message: report and skip it, stop, or make it a dead letter of --group.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@format_option
@namesrv_option
@namespace_option
def consume(topic: str, start: Start, until: int | None, namesrv: str, output: str, **choice: Any) -> None:
    """Print the messages of TOPIC.

    `text` prints bodies, one a line; `json` prints one object a line with position and properties, which `pyromq send
    --input json` reads; `-f '%k %v\\n'` prints keys and body. Stop with Ctrl-C or SIGTERM.
    """
    show = shown_by(choice["form"], output)
    group, damaged = choice["group"], Damaged(choice["damaged"].replace("-", " "))
    if group is None and damaged is Damaged.DEAD_LETTER:
        raise click.UsageError("--damaged dead-letter needs the group of the dead letters: give --group")
    chosen = {"tags": choice["tags"], "sql": choice["sql"]}
    try:
        wanted_by(**chosen)
        _warn_of_odd_tags(choice["tags"])
    except SubscriptionParseFailed as error:
        raise click.UsageError(str(error)) from error
    config = _without_group() if group is None else _as_member(start, until, choice)
    config = replace(config, damaged=damaged, deliver_undecodable=True)  # undecodable messages are reported
    config = replace(config, connections=connections(waits=group is not None), namespace=choice["namespace"])
    with sigterm_interrupts(), PullConsumer(group or TOOLS_GROUP, namesrv, config=config) as consumer:
        queues = _queues(consumer, topic, choice["queue_ids"])
        if group is None:
            reader = TopicReader(consumer, queues, chosen, start, choice["last"], choice["follow"], until)
            reader = replace(reader, adds_queues=not choice["queue_ids"])
            messages = reader.messages()
        else:
            consumer.subscribe(topic, **chosen)
            messages = iter(consumer)
            print_waiting()
        with OutputWatch(partial(_leave, consumer)):
            _print(islice(messages, choice["count"]), show)


def _leave(consumer: PullConsumer) -> None:
    """Close a consumer while another thread prints a message; that message is not committed."""
    with suppress(NotRunning):
        consumer.hand_back_latest()
    consumer.close()


def _warn_of_odd_tags(tags: str) -> None:
    if looks_like_sql(tags):
        return  # the consumer warns
    if "|" in tags.replace("||", ""):
        click.echo(
            f"warning: a single | in '{escaped(tags)}' is part of a tag; two tags are written `a || b`", err=True
        )
    try:
        check_tag_words(tags)
    except SubscriptionParseFailed as error:
        click.echo(f"warning: {one_line(error)}", err=True)


def _without_group() -> ConsumerConfig:
    """Return the configuration of a consumer that commits no offsets. Queues found later begin at the present time."""
    now_ms = time.time_ns() // 1_000_000
    return ConsumerConfig(auto_commit=False, consume_from=ConsumeFrom.TIME, consume_from_ms=now_ms)


def _as_member(start: Start, until: int | None, choice: Mapping[str, Any]) -> ConsumerConfig:
    if until is not None or choice["queue_ids"] or choice["last"]:
        raise click.UsageError("--last, --until and --queue are not for --group: its members share all of the queues")
    if start.offset:
        raise click.UsageError(
            "--from with an offset is not for --group; `pyromq offset set` sets the offsets of a group"
        )
    policy = ConsumeFrom.TIME if start.time_ms else ConsumeFrom.LAST if start == END else ConsumeFrom.FIRST
    return ConsumerConfig(
        consume_from=policy, consume_from_ms=start.time_ms or 0, auto_commit_seconds=MEMBER_COMMIT_SECONDS
    )


def _print(messages: Iterator[StoredMessage], show: Callable[[StoredMessage], bool]) -> None:
    with ProgressLine("read", beside_output=True) as progress:
        for number, message in enumerate(messages, 1):
            show(message)
            progress.show(number)


def _queues(consumer: PullConsumer, topic: str, queue_ids: tuple[int, ...]) -> list[MessageQueue]:
    queues = consumer.queues(topic)
    known = {queue.queue_id for queue in queues}
    if missing := sorted(set(queue_ids) - known):
        ranges = f"{min(known)} to {max(known)}" if known else "no readable ones"
        raise UsageError(f"topic {topic} has no queue {', '.join(map(str, missing))}; it has {ranges}")
    return [queue for queue in queues if not queue_ids or queue.queue_id in queue_ids]


def shown_by(form: str | None, output: str) -> Callable[[StoredMessage], bool]:
    """Return the function that prints a message, or reports its undecodable body and returns False.

    Raises `click.UsageError` for a wrong format.
    """
    if form is None:
        return _show_json if output == "json" else partial(_show_formatted, _body_line)
    if output == "json":
        raise click.UsageError("give -f or -o json, not both")
    try:
        return partial(_show_formatted, parse_format(form))
    except UsageError as error:
        raise click.UsageError(str(error)) from error


def _show_formatted(formatted: Callable[[StoredMessage], bytes], message: StoredMessage) -> bool:
    try:
        content = formatted(message)
    except UndecodableBody as error:
        place = f"{message.message_id} in {message.queue}, queue offset {message.queue_offset}"
        click.echo(f"message {escaped(place)}: {escaped(str(error))}", err=True)
        return False
    sys.stdout.buffer.write(_for_terminal(content) if sys.stdout.isatty() else content)
    sys.stdout.buffer.flush()
    return True


def _body_line(message: StoredMessage) -> bytes:
    return message.body + b"\n"


def _for_terminal(body: bytes) -> bytes:
    """Return the body with control characters escaped, except line ends and tabs. Files and pipes get it unchanged."""
    text = body.decode(errors="backslashreplace")
    return _ESCAPED_ON_TERMINALS.sub(lambda match: escaped(match[0]), text).encode()


def _show_json(message: StoredMessage) -> bool:
    click.echo(as_json(as_record(message)))
    return True


def as_record(message: StoredMessage) -> dict[str, Any]:
    """Return a message as a JSON record. A body that is not UTF-8 is Base64.

    A body that cannot be decompressed is Base64 of the stored bytes, with the reason in `body_error`.
    """
    record: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "born_time": local_time(message.born_ms),
        "store_time": local_time(message.store_ms),
        "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
    }
    try:
        body = message.body
    except UndecodableBody as error:
        return record | {"body_error": str(error), "body_base64": b64encode(message.stored_body).decode()}
    try:
        record["body"] = body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = b64encode(body).decode()
    return record


class OutputWatch:
    """Calls `end` in a thread as soon as the reader of standard output has closed the pipe or socket.

    Exiting the context then raises `BrokenPipeError`, as the next write would.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._closed = False
        self._left = threading.Event()

    def __enter__(self) -> Self:
        try:
            descriptor = sys.stdout.fileno()
        except OSError:  # not a file
            return self
        threading.Thread(target=self._watch, args=(descriptor,), name="pyromq output", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._closed:
            raise BrokenPipeError(errno.EPIPE, "standard output was closed by its reader") from error

    def _watch(self, descriptor: int) -> None:
        if platform.wait_for_reader_gone(descriptor, self._left.is_set):
            self._closed = True
            self._end()


def parse_format(text: str) -> Callable[[StoredMessage], bytes]:
    """Return a function that formats a message as bytes. Raises `UsageError` for an unknown field."""
    parts: list[FieldReader] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise UsageError(f"{text[position:]!r} in format {text!r} is not a field; fields: {HELP}")
        parts.append(_part(match, text))
        position = match.end()

    def formatted(message: StoredMessage) -> bytes:
        return b"".join([_bytes(part(message)) for part in parts])

    return formatted


def _part(match: re.Match[str], text: str) -> FieldReader:
    percent, letter, name, escape, plain = match.groups()
    if letter is not None:
        if letter not in FIELDS:
            raise UsageError(f"%{letter} in format {text!r} is not a field; fields: {HELP}")
        return FIELDS[letter][1]
    if name is not None:
        return lambda message: message.properties.get(name, "")
    if escape is not None:
        constant = bytes.fromhex(escape[1:]) if escape[0] == "x" and len(escape) == 3 else _ESCAPES.get(escape)
        if constant is None:
            raise UsageError(f"\\{escape} in format {text!r} is unknown; write \\n, \\t, \\r, \\0, \\xNN or \\\\")
    else:
        constant = (percent or plain).encode()
    return lambda message: constant


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _time(ms: int) -> str:
    at = local_time(ms)
    return at.isoformat(timespec="milliseconds") if at is not None else ""
