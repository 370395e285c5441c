"""A stream whose master is away, and whose slave lacks the newest messages: no message is lost or read twice."""

import asyncio

import pytest
from tests.client.replica_set import NAME, replica_set

pytest.importorskip("pyarrow")

from pyromq import AsyncProducer, Message
from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import Unavailable
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.options import STREAM
from pyromq.spark.read.range_reader import read_ranges
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.testing import FakeClock

QUEUE = MessageQueue("orders", NAME, 0)


class Replicas:
    """A master with 8 messages, and a slave with the first 5."""

    def __init__(self, replicas, master, slave):
        self._replicas = replicas
        self._master, self._slave = master, slave

    async def master_leaves(self):
        await self._replicas.unregister(self._master)

    async def master_returns(self):
        await self._replicas.register(self._master)

    def options(self, **given):
        given = {"namesrvAddr": self._replicas.namesrv, "subscribe": "orders", "startingOffsets": "earliest"} | given
        return read_options(given, STREAM)

    async def plan(self, start=None, **given):
        """Return the planning's beginning, or the end of the micro-batch after `start`, with a new client."""

        def work():
            with QueueReader("job", self._replicas.namesrv) as client:
                planning = StreamPlanning(self.options(**given), client, FakeClock())
                return planning.first() if start is None else planning.next(start)

        return await asyncio.to_thread(work)

    async def read(self, start, end, **given):
        planning = StreamPlanning(self.options(), None, FakeClock())
        ranges = [each for each in planning.ranges(start, end) if len(each)]
        batches = read_ranges(self.options(**given), ["body"], ranges)
        return await asyncio.to_thread(lambda: [body.as_py() for batch in batches for body in batch.column(0)])


@pytest.fixture
async def replicas(tmp_path):
    async with replica_set(tmp_path) as found:
        master = await found.start()
        await found.register(master)
        async with AsyncProducer("g", found.namesrv) as producer:
            for number in range(8):
                if number == 5:
                    slave = await found.start(copy_of=0)
                    await found.register(slave, broker_id=1)
                await producer.send(Message("orders", b"%d" % number), queue=QUEUE)
        yield Replicas(found, master, slave)


@pytest.mark.parametrize("loss", ["true", "false"])
async def test_a_slave_that_is_behind_is_planned_as_an_absent_broker(replicas, loss):
    end = await replicas.plan(await replicas.plan())
    assert end.positions[QUEUE] == 8
    await replicas.master_leaves()
    with pytest.raises(Unavailable, match=f"broker {NAME} is not registered"):  # no other queue can be read
        await replicas.plan(end, failOnDataLoss=loss)
    await replicas.master_returns()
    assert await replicas.plan(end, failOnDataLoss=loss) == end


@pytest.mark.parametrize("loss", ["true", "false"])
async def test_a_task_waits_for_messages_that_a_slave_lacks(replicas, loss):
    start = await replicas.plan()
    end = await replicas.plan(start)
    await replicas.master_leaves()
    with pytest.raises(Unavailable, match=f"queue 0 of topic orders at {NAME} ends at 5 "):
        await replicas.read(start, end, deadlineMs="1s", failOnDataLoss=loss)
    await replicas.master_returns()
    assert await replicas.read(start, end) == [b"%d" % number for number in range(8)]
