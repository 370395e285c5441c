"""Records a data folder of this version with everything in it that is not RocketMQ's.

    python -m tests.golden.own_folder

A version that changes a format of its own records one more folder, and goes on reading the earlier ones.
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyromq import __version__
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.producer.batch_transactions import AsyncBatchTransactions
from pyromq.client.producer.transaction_producer import AsyncTransactionProducer, Decision
from pyromq.message import Message
from pyromq.testing import Cluster

FOLDER = Path(__file__).parent / "own"
BEGIN = datetime.fromtimestamp(1_700_000_000, UTC)  # where the clock of tests begins
LATER = BEGIN + timedelta(minutes=5)
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


async def write(cluster: Cluster) -> None:
    """Leave behind: a scheduled and a cancelled message, pops, a half message, attempts, and one decision."""
    producer = await cluster.producer()
    await producer.send(Message("mail", b"later", deliver_at=LATER))
    cancelled = await producer.send(Message("mail", b"cancelled", deliver_at=LATER))
    await producer.cancel(cancelled.recall_handle)
    await (await cluster.admin()).create_topic("tasks", 1)
    for number in range(4):
        await producer.send(Message("tasks", b"%d" % number, keys=(f"task-{number}",)))
    consumer = await cluster.simple_consumer("workers", config=FIRST)
    consumer.subscribe("tasks")
    popped = await consumer.receive(3, invisible_seconds=300)
    await consumer.ack(popped[1])
    async with AsyncTransactionProducer("shop", cluster.namesrv, check=lambda message: Decision.UNKNOWN) as shop:
        await shop.send_half(Message("paid", b"half"))
    async with AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        for name in ("decided", "open"):
            async with batches.attempt(name, token=f"{name}-1") as attempt:
                await attempt.send([Message("rows", name.encode())])
            if name == "decided":
                await batches.commit(name, [attempt.result])
    await cluster.clock.advance(60)


async def record(end: str, folder: Path) -> None:
    async with Cluster(data=folder) as cluster:
        await write(cluster)
        await (cluster.kill_broker() if end == "killed" else cluster.stop_broker())
    FOLDER.mkdir(exist_ok=True)
    with tarfile.open(FOLDER / f"pyromq-{__version__}-{end}.tar.xz", "w:xz") as archive:
        archive.add(folder / "broker-a", "broker-a")


def main() -> None:
    for end in ("stopped", "killed"):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(record(end, Path(folder)))


if __name__ == "__main__":
    main()
