"""`pyromq bench`: measures the throughput of sending and pulling with the client in this process."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import click

from pyromq import ConsumerConfig, Message, Producer, ProducerConfig, PullConsumer, SendResult
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import connections, namesrv_option
from pyromq.cli.progress_line import ProgressLine
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import output_option, show_record
from pyromq.names import TOOLS_GROUP

TOPIC = "pyromq-bench"
PRODUCER_GROUP = "pyromq-bench"


@click.group(cls=Group)
def bench() -> None:
    """Measure the throughput of sending and pulling."""


@bench.command()
@click.option("-t", "--topic", default=TOPIC, show_default=True)
@click.option("-c", "--count", type=WholeNumber(1), default=50_000, show_default=True, help="Number of messages.")
@click.option("--size", type=WholeNumber(1, 4 << 20), default=128, show_default=True, help="Bytes of a body.")
@click.option(
    "--in-flight", type=WholeNumber(1, 4096), default=64, show_default=True, help="Unconfirmed sends at a time."
)
@namesrv_option
@output_option
def send(topic: str, count: int, size: int, in_flight: int, namesrv: str, output: str) -> None:
    """Send messages and wait until all are confirmed."""
    body = b"x" * size
    config = ProducerConfig(connections=connections())
    with Producer(PRODUCER_GROUP, namesrv, config=config) as producer, ProgressLine("sent") as progress:
        producer.send(Message(topic, body))  # fetches the route and connects before the measurement
        latencies: list[float] = []
        started = time.perf_counter()
        if in_flight == 1:
            for number in range(count):
                before = time.perf_counter()
                producer.send(Message(topic, body))
                latencies.append(time.perf_counter() - before)
                progress.show(number)
        else:
            _send_in_flight(producer, Message(topic, body), count, in_flight=in_flight, progress=progress)
        seconds = time.perf_counter() - started
    show_record(_figures("sent", count, count * size, seconds) | _percentiles(latencies), output)


def _send_in_flight(
    producer: Producer, message: Message, count: int, *, in_flight: int, progress: ProgressLine
) -> None:
    pending: deque[Future[SendResult]] = deque()
    for number in range(count):
        pending.append(producer.send_soon(Message(message.topic, message.body)))
        if len(pending) >= in_flight:
            pending.popleft().result()
            progress.show(number)
    for future in pending:
        future.result()


@bench.command()
@click.option("-t", "--topic", default=TOPIC, show_default=True)
@click.option("--batch", type=WholeNumber(1, 1024), default=32, show_default=True, help="Messages per pull request.")
@namesrv_option
@output_option
def pull(topic: str, batch: int, namesrv: str, output: str) -> None:
    """Pull all messages of a topic, one queue after the other, and decode them."""
    count = size = 0
    config = ConsumerConfig(connections=connections())
    with PullConsumer(TOOLS_GROUP, namesrv, config=config) as consumer, ProgressLine("pulled") as progress:
        ends = {queue: consumer.max_offset(queue) for queue in consumer.queues(topic)}
        started = time.perf_counter()
        for queue, end in ends.items():
            offset = consumer.min_offset(queue)
            while offset < end:
                found = consumer.pull(queue, offset, batch)
                if found.next_offset <= offset:
                    break
                offset = found.next_offset
                count += len(found.messages)
                size += sum(len(message.stored_body) for message in found.messages)
                progress.show(count)
        seconds = time.perf_counter() - started
    show_record(_figures("pulled", count, size, seconds), output)


def _figures(label: str, count: int, size: int, seconds: float) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        label: count,
        "body_bytes": round(size / max(count, 1)),
        "seconds": round(seconds, 3),
        "messages_per_second": round(count / seconds),
        "mebibytes_per_second": round(size / seconds / (1 << 20), 1),
    }


def _percentiles(latencies: list[float]) -> dict[str, Any]:
    ordered = sorted(latencies)
    if not ordered:
        return {}
    return {f"p{each}_ms": round(ordered[len(ordered) * each // 100] * 1000, 3) for each in (50, 99)}
