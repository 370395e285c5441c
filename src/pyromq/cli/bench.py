"""`pyromq bench`: how fast this machine sends and pulls, with the client in this process."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future

import click

from pyromq.cli.progress import Progress
from pyromq.cli.render import namesrv_option, output_option, show_record
from pyromq.client.blocking import Producer
from pyromq.client.blocking_pull_consumer import PullConsumer
from pyromq.message import Message, SendResult

TOPIC = "pyromq-bench"
GROUP = "pyromq-bench"


@click.group()
def bench() -> None:
    """Measure sending and pulling through the client of this process."""


@bench.command()
@click.option("--topic", default=TOPIC, show_default=True)
@click.option("--count", type=click.IntRange(1), default=50_000, show_default=True, help="Messages.")
@click.option("--size", type=click.IntRange(1, 4 << 20), default=128, show_default=True, help="Bytes of a body.")
@click.option("--in-flight", type=click.IntRange(1, 4096), default=64, show_default=True, help="1: wait for each.")
@namesrv_option
@output_option
def send(topic: str, count: int, size: int, in_flight: int, namesrv: str, output: str) -> None:
    """Send messages and wait for every confirmation."""
    message = Message(topic, b"x" * size)
    with Producer(GROUP, namesrv) as producer, Progress("sent") as progress:
        producer.send(Message(topic, b"first"))  # routes and connections are made before the clock starts
        started = time.perf_counter()
        if in_flight == 1:
            for number in range(count):
                producer.send(Message(topic, message.body))
                progress.show(number)
        else:
            _send_in_flight(producer, message, count, in_flight, progress)
        seconds = time.perf_counter() - started
    _show("sent", count, size, seconds, output)


def _send_in_flight(producer: Producer, message: Message, count: int, in_flight: int, progress: Progress) -> None:
    pending: deque[Future[SendResult]] = deque()
    for number in range(count):
        pending.append(producer.send_soon(Message(message.topic, message.body)))
        if len(pending) >= in_flight:
            pending.popleft().result()
            progress.show(number)
    for future in pending:
        future.result()


@bench.command()
@click.option("--topic", default=TOPIC, show_default=True)
@click.option("--batch", type=click.IntRange(1, 1024), default=32, show_default=True, help="Messages a pull asks for.")
@namesrv_option
@output_option
def pull(topic: str, batch: int, namesrv: str, output: str) -> None:
    """Pull a topic from beginning to end, decoding every message."""
    count = size = 0
    with PullConsumer(GROUP, namesrv) as consumer, Progress("pulled") as progress:
        queues = consumer.queues(topic)
        started = time.perf_counter()
        for queue in queues:
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                found = consumer.pull(queue, offset, batch)
                offset = found.next_offset
                count += len(found.messages)
                size += sum(len(message.stored_body) for message in found.messages)
                progress.show(count)
        seconds = time.perf_counter() - started
    _show("pulled", count, size // max(count, 1), seconds, output)


def _show(what: str, count: int, size: int, seconds: float, output: str) -> None:
    record = {
        what: count,
        "body_bytes": size,
        "seconds": round(seconds, 3),
        "messages_per_second": round(count / max(seconds, 1e-9)),
        "mebibytes_per_second": round(count * size / max(seconds, 1e-9) / (1 << 20), 1),
    }
    show_record(record, output)
