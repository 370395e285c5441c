"""A queue's entry that is damaged, found by a pull that has to come from the disk: a task misses nothing for it."""

import asyncio

import pytest

pytest.importorskip("pyarrow")

from pyromq import Message
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.options import BATCH
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.range_reader import read_ranges
from pyromq.store.disk import LocalDisk
from pyromq.store.log import commit_log
from pyromq.testing import Cluster

QUEUE = MessageQueue("orders", "broker-a", 0)
COUNT = 6


async def test_a_task_reads_what_the_broker_has_just_mended(tmp_path, monkeypatch):
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    async with Cluster(data=tmp_path) as cluster:
        async with await cluster.admin() as admin:
            await admin.create_topic("orders", 1)
        producer = await cluster.producer()
        for number in range(COUNT):
            await producer.send(Message("orders", b"%d" % number), queue=QUEUE)
        await cluster.restart_broker()  # entries of an earlier process are compared when they are read
        entries = cluster.broker.store._queues.find("orders", 0)
        entry = entries.find(3)
        entries.put(3, entry._replace(log_offset=entry.log_offset + 1))
        loaded = []
        monkeypatch.setattr(LocalDisk, "is_resident", lambda *_: bool(loaded))
        monkeypatch.setattr(LocalDisk, "load", lambda disk, pieces: loaded.extend(pieces))

        def read():
            options = read_options({"namesrvAddr": cluster.namesrv, "subscribe": "orders"}, BATCH)
            batches = read_ranges(options, ["body"], [QueueRange(QUEUE, 0, COUNT)])
            return [body.as_py() for batch in batches for body in batch.column(0)]

        assert await asyncio.to_thread(read) == [b"%d" % number for number in range(COUNT)]
