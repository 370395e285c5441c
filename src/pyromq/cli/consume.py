"""`pyromq consume`: print what a topic holds, from a place on, until now or for ever."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import click

from pyromq.cli.progress import Progress
from pyromq.cli.render import local_time, namesrv_option
from pyromq.cli.times import Start, StartType, TimeType
from pyromq.client.blocking_pull_consumer import PullConsumer
from pyromq.message import MessageQueue, StoredMessage

GROUP = "pyromq-cli-consumer"


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="end",
    show_default=True,
    metavar="beginning|end|TIME|OFFSET",
    help="Where to start: a time is 10m (ago) or 2026-01-31 12:00; an offset holds for every queue.",
)
@click.option("--until", type=TimeType(), metavar="now|TIME", help="Stop there. [default: go on for ever]")
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--tags", default="*", show_default=True, help="Tag expression: `a || b`.")
@click.option("--queue", "queue_ids", type=int, multiple=True, help="Only this queue id; may be repeated.")
@click.option("--group", default=GROUP, show_default=True, help="Consumer group; its offsets stay untouched.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@namesrv_option
def consume(
    topic: str, start: Start, until: int | None, count: int | None, form: str, group: str, namesrv: str, **choice: Any
) -> None:
    """Print the messages of TOPIC.

    `text` prints bodies, one a line; `json` prints one object a line with all coordinates and properties.
    """
    with PullConsumer(group, namesrv) as consumer, Progress("read") as progress:
        queues = _queues(consumer, topic, choice["queue_ids"])
        consumer.assign(queues, tags=choice["tags"])
        _seek(consumer, queues, start)
        ends = None if until is None else {queue: _end(consumer, queue, until) for queue in queues}
        for number, message in enumerate(_messages(consumer, ends), 1):
            _print(message, form)
            progress.show(number)
            if number == count:
                break


def _queues(consumer: PullConsumer, topic: str, queue_ids: tuple[int, ...]) -> list[MessageQueue]:
    queues = list(consumer.queues(topic))
    if not queue_ids:
        return queues
    chosen = [queue for queue in queues if queue.queue_id in queue_ids]
    if missing := set(queue_ids) - {queue.queue_id for queue in queues}:
        ids = sorted({queue.queue_id for queue in queues})
        raise click.BadParameter(f"topic {topic} has no queue {sorted(missing)}; it has {ids}", param_hint="--queue")
    return chosen


def _seek(consumer: PullConsumer, queues: list[MessageQueue], start: Start) -> None:
    for queue in queues:
        if start.place == "beginning":
            consumer.seek_to_begin(queue)
        elif start.place == "end":
            consumer.seek_to_end(queue)
        elif start.time_ms is not None:
            consumer.seek_to_time(queue, start.time_ms)
        elif start.offset is not None:
            least, most = consumer.min_offset(queue), consumer.max_offset(queue)
            consumer.seek(queue, min(max(start.offset, least), most))


def _end(consumer: PullConsumer, queue: MessageQueue, until_ms: int) -> int:
    """Return the queue offset to stop before: messages stored after `until_ms` are not read."""
    most = consumer.max_offset(queue)
    if until_ms >= time.time() * 1000 - 1000:
        return most
    return min(consumer.offset_by_time(queue, until_ms), most)


def _messages(consumer: PullConsumer, ends: dict[MessageQueue, int] | None) -> Iterator[StoredMessage]:
    while ends is None or any(consumer.position(queue) < end for queue, end in ends.items()):
        for message in consumer.poll(timeout=1.0 if ends is None else 0.2):
            if ends is None or message.queue_offset < ends[message.queue]:
                yield message


def _print(message: StoredMessage, form: str) -> None:
    if form == "text":
        sys.stdout.buffer.write(message.body + b"\n")
        sys.stdout.buffer.flush()
        return
    click.echo(json.dumps(as_record(message), ensure_ascii=False))


def as_record(message: StoredMessage) -> dict[str, Any]:
    """Return a message as JSON knows it; a body that is no text is given in Base64 under another name."""
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
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = b64encode(message.body).decode()
    return record
