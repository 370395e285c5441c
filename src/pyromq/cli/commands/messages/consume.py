"""`pyromq consume`: print what a topic holds, from a place on, until now or for ever.

Up to now, the queues are merged by store time, so that messages appear as they were sent; what comes later appears as
it comes. No group's offsets are touched - unless a group is named: then this is one of its members, which share the
queues, and offsets are stored for what was printed.
"""

from __future__ import annotations

import errno
import heapq
import re
import select
import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from types import TracebackType
from typing import Any, Self

import click

from pyromq.cli.cluster_names import GROUP_NAME, TOPIC_NAME
from pyromq.cli.connecting import connections, namespace_option, namesrv_option
from pyromq.cli.progress import Progress
from pyromq.cli.render import as_json, one_line
from pyromq.cli.times import END, Start, read_start, read_time
from pyromq.client.blocking.pull_consumer import PullConsumer
from pyromq.client.blocking.sigint import sigterm_calls
from pyromq.client.config import ConsumeFrom, ConsumerConfig, Damaged
from pyromq.client.consumer.damage import DamagedMessage, MessageDamaged
from pyromq.client.consumer.pulling import PullResult
from pyromq.clock import local_time
from pyromq.errors import SubscriptionParseFailed, UndecodableBody, UsageError
from pyromq.excerpt import escaped
from pyromq.filter.subscribed import wanted_by
from pyromq.filter.tags import check_tag_words, looks_like_sql
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import TOOLS_GROUP

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
    "r": ("attempts that have failed", lambda message: str(message.reconsume_times)),
}
_LIST = ", ".join(f"%{letter} {text}" for letter, (text, _) in FIELDS.items())
HELP = _LIST + r", %{NAME} property, %% percent, \n \t \0"

_PART = re.compile(r"%(?:(%)|([a-zA-Z])|\{([^}]+)\})|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Part = Callable[[StoredMessage], str | bytes]

LOOK_MS = 1000  # how long the thread outlives what it watched for; a closed pipe wakes it at once

POLL_SECONDS = 0.5
_NO_TERMINALS = re.compile(r"[^\n\t\x20-\x7e]")  # but for what is printable all the same
MEMBER_COMMIT_SECONDS = 1.0  # what a killed member has printed since comes again


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.option(
    "--from",
    "start",
    type=read_start,
    default="end",
    show_default=True,
    metavar="beginning|end|TIME|OFFSET",
    help="Where to start: a time is 10m (ago) or 2026-01-31 12:00; an offset holds for every queue.",
)
@click.option("--until", type=read_time, metavar="now|TIME", help="Stop there. [default: go on for ever]")
@click.option("--count", type=click.IntRange(1, sys.maxsize), metavar="N", help="Stop after this many messages.")
@click.option("--tags", default="*", show_default=True, help="Only these: `a || b`.")
@click.option("--sql", metavar="EXPRESSION", help="Only those of which this is true: `price > 5 AND region = 'EU'`.")
@click.option("--queue", "queue_ids", type=int, multiple=True, metavar="ID", help="Only this queue; may be repeated.")
@click.option(
    "--group",
    type=GROUP_NAME,
    help="Be a member of this group: its members share the queues, and where they are is stored. --from then says "
    "where the group starts the first time.",
)
@click.option(
    "--damaged",
    type=click.Choice([each.value.replace(" ", "-") for each in Damaged]),
    default="skip",
    show_default=True,
    help="Where a message is not what was stored: tell it and go on, end there, or make it a dead letter of --group.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-f", "--format", "form", metavar="TEXT", help=f"Print this of each message: {HELP}.")
@namesrv_option
@namespace_option
def consume(topic: str, start: Start, until: int | None, namesrv: str, output: str, **choice: Any) -> None:
    """Print the messages of TOPIC.

    `text` prints bodies, one a line; `json` prints one object a line with all coordinates and properties, which `pyromq
    send --input json` takes; `-f '%k %v\\n'` prints what it says. SIGTERM ends it as Ctrl-C does.
    """
    show = _show(choice["form"], output)
    group, damaged = choice["group"], Damaged(choice["damaged"].replace("-", " "))
    if group is None and damaged is Damaged.DEAD_LETTER:
        raise click.UsageError("--damaged dead-letter makes dead letters of a group: name one with --group")
    chosen = {"tags": choice["tags"], "sql": choice["sql"]}
    try:
        wanted_by(**chosen)
        _warn_of_odd_tags(choice["tags"])
    except SubscriptionParseFailed as error:
        raise click.UsageError(str(error)) from error
    config = ConsumerConfig(auto_commit=False) if group is None else _as_member(start, until, choice["queue_ids"])
    config = replace(config, damaged=damaged, deliver_undecodable=True)  # they are shown
    end = partial(signal.raise_signal, signal.SIGINT)
    config = replace(config, connections=connections(), namespace=choice["namespace"])
    with sigterm_calls(end), PullConsumer(group or TOOLS_GROUP, namesrv, config=config) as consumer:
        queues = _queues(consumer, topic, choice["queue_ids"])
        if group is None:
            messages = Reading(consumer, queues, chosen, start, until).messages()
        else:
            consumer.subscribe(topic, **chosen)
            messages = iter(consumer)
            _tell_waiting()
        with OutputWatch(consumer.close):
            _print(islice(messages, choice["count"]), show)


def _warn_of_odd_tags(tags: str) -> None:
    if looks_like_sql(tags):
        return  # the consumer warns
    try:
        check_tag_words(tags)
    except SubscriptionParseFailed as error:
        click.echo(f"warning: {one_line(error)}", err=True)


def _as_member(start: Start, until: int | None, queue_ids: tuple[int, ...]) -> ConsumerConfig:
    if until is not None or queue_ids:
        raise click.UsageError("--group shares the queues with other members: --until and --queue do not go with it")
    if start.offset:
        raise click.UsageError("--group starts at the beginning, the end or a time; `pyromq offset set` moves it")
    policy = ConsumeFrom.TIME if start.time_ms else ConsumeFrom.LAST if start == END else ConsumeFrom.FIRST
    return ConsumerConfig(
        consume_from=policy, consume_from_ms=start.time_ms or 0, auto_commit_seconds=MEMBER_COMMIT_SECONDS
    )


def _print(messages: Iterator[StoredMessage], show: Callable[[StoredMessage], None]) -> None:
    with Progress("read", beside_output=True) as progress:
        for number, message in enumerate(messages, 1):
            show(message)
            progress.show(number)


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read: queues, tags or expression, from `start` to `until_ms` (ms since 1970; None: no end)."""

    consumer: PullConsumer
    queues: list[MessageQueue]
    chosen: Mapping[str, Any]
    start: Start
    until_ms: int | None

    def messages(self) -> Iterator[StoredMessage]:
        """Yield what is there now, in the order it was stored, then what comes."""
        ends = {queue: self.consumer.max_offset(queue) for queue in self.queues}
        if self.start == END:
            history: Iterator[StoredMessage] = iter(())
        else:
            # Offsets of one broker's log tell the order within a millisecond.
            history = heapq.merge(
                *(self._between(queue, self._first(queue, end), end) for queue, end in ends.items()),
                key=lambda message: (message.store_ms, message.broker_name, message.log_offset),
            )
        over = self.until_ms is not None and self.until_ms <= time.time() * 1000
        return history if over else chain(history, self._coming(ends))

    def _first(self, queue: MessageQueue, end: int) -> int:
        if self.start.time_ms is not None:
            # The nearest to the time may lie in the midst of several of that millisecond: begin before it.
            return self.consumer.offset_by_time(queue, self.start.time_ms - 1)
        least = self.consumer.min_offset(queue)
        return min(max(self.start.offset or 0, least), end)

    def _between(self, queue: MessageQueue, offset: int, end: int) -> Iterator[StoredMessage]:
        while offset < end:
            found = self.consumer.pull(queue, offset, **self.chosen)
            for message in self._sound(found):
                if message.queue_offset >= end or self._is_late(message):
                    return
                if self.start.time_ms is None or message.store_ms >= self.start.time_ms:
                    yield message
            if found.next_offset <= offset:  # the queue ends earlier than it did a moment ago
                return
            offset = found.next_offset

    def _sound(self, found: PullResult) -> Iterator[StoredMessage]:
        """Yield a pull's messages; tell of those that are damaged, as single pulls do not, or end at the first."""
        all_of_them: list[StoredMessage | DamagedMessage] = [*found.messages, *found.damaged]
        for each in sorted(all_of_them, key=lambda each: each.queue_offset):
            if isinstance(each, StoredMessage):
                yield each
            elif self.consumer.config.damaged is Damaged.STOP:
                raise MessageDamaged(each)
            else:
                click.echo(f"damaged message in {escaped(str(each))}; it is passed over", err=True)

    def _coming(self, ends: Mapping[MessageQueue, int]) -> Iterator[StoredMessage]:
        _tell_waiting()
        self.consumer.assign(self.queues, **self.chosen)
        for queue, end in ends.items():
            self.consumer.seek(queue, end)
        while self.until_ms is None or time.time() * 1000 < self.until_ms + POLL_SECONDS * 1000:
            for message in self.consumer.poll(timeout=POLL_SECONDS):
                if not self._is_late(message):
                    yield message

    def _is_late(self, message: StoredMessage) -> bool:
        return self.until_ms is not None and message.store_ms > self.until_ms


def _queues(consumer: PullConsumer, topic: str, queue_ids: tuple[int, ...]) -> list[MessageQueue]:
    queues = consumer.queues(topic)
    known = {queue.queue_id for queue in queues}
    if missing := sorted(set(queue_ids) - known):
        raise UsageError(f"topic {topic} has no queue {missing}; it has {sorted(known)}")
    return [queue for queue in queues if not queue_ids or queue.queue_id in queue_ids]


def _tell_waiting() -> None:
    if sys.stderr.isatty() and sys.stdout.isatty():
        click.echo("waiting for messages; Ctrl-C ends", err=True)


def _show(form: str | None, output: str) -> Callable[[StoredMessage], None]:
    if form is None:
        return _show_json if output == "json" else _show_text
    if output == "json":
        raise click.UsageError("give -f or -o json, not both")
    try:
        return partial(_show_formatted, parse_format(form))
    except UsageError as error:
        raise click.UsageError(str(error)) from error


def _show_formatted(formatted: Callable[[StoredMessage], bytes], message: StoredMessage) -> None:
    try:
        content = formatted(message)
    except UndecodableBody as error:
        _tell_undecodable(message, error)
    else:
        _write(content)


def _show_text(message: StoredMessage) -> None:
    try:
        body = message.body
    except UndecodableBody as error:
        _tell_undecodable(message, error)
    else:
        _write(body + b"\n")


def _tell_undecodable(message: StoredMessage, error: UndecodableBody) -> None:
    place = f"{message.message_id} in {message.queue}, queue offset {message.queue_offset}"
    click.echo(f"no body of message {escaped(place)}: {escaped(str(error))}", err=True)


def _write(content: bytes) -> None:
    sys.stdout.buffer.write(_for_terminal(content) if sys.stdout.isatty() else content)
    sys.stdout.buffer.flush()


def _for_terminal(body: bytes) -> bytes:
    """Return a body's text without what a terminal obeys; lines and tabs stay. What goes elsewhere is as sent."""
    text = body.decode(errors="backslashreplace")
    return _NO_TERMINALS.sub(lambda match: escaped(match[0]), text).encode()


def _show_json(message: StoredMessage) -> None:
    click.echo(as_json(as_record(message)))


def as_record(message: StoredMessage) -> dict[str, Any]:
    """Return a message as JSON knows it; a body that is no text is given in Base64.

    So is one that cannot be unpacked, as it is stored, and `body_error` says why.
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
    """Calls `end` in a thread of its own when standard output is a pipe or socket that nobody reads any more.

    Leaving it then raises `BrokenPipeError`, as the next write would have.
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
            raise BrokenPipeError(errno.EPIPE, "nobody reads standard output") from error

    def _watch(self, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # errors and hang-ups are told unasked
        while not self._left.is_set():
            if poll.poll(LOOK_MS):
                self._closed = True
                self._end()
                return


def parse_format(text: str) -> Callable[[StoredMessage], bytes]:
    """Return what makes a message's bytes. Raises `UsageError` naming a field that does not exist."""
    parts: list[Part] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise UsageError(f"{text[position:]!r} in format {text!r}: a field is {HELP}")
        parts.append(_part(match, text))
        position = match.end()

    def formatted(message: StoredMessage) -> bytes:
        return b"".join([_bytes(part(message)) for part in parts])

    return formatted


def _part(match: re.Match[str], text: str) -> Part:
    percent, letter, name, escape, plain = match.groups()
    if letter is not None:
        if letter not in FIELDS:
            raise UsageError(f"%{letter} in format {text!r} is no field; there are {HELP}")
        return FIELDS[letter][1]
    if name is not None:
        return lambda message: message.properties.get(name, "")
    if escape is not None:
        constant = bytes.fromhex(escape[1:]) if escape[0] == "x" and len(escape) == 3 else _ESCAPES.get(escape)
        if constant is None:
            raise UsageError(f"\\{escape} in format {text!r} is unknown; there are \\n, \\t, \\r, \\0, \\xNN and \\\\")
    else:
        constant = (percent or plain).encode()
    return lambda message: constant


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _time(ms: int) -> str:
    time = local_time(ms)
    return time.isoformat(timespec="milliseconds") if time is not None else ""
