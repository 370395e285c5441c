"""What comes and goes leaves nothing: the containers of servers and clients that live long do not grow."""

import asyncio

import pytest
from tests.broker.popping.poppers import Popper
from tests.broker.transactions.transactions import Checked, Transactions
from tests.endurance.containers import grown, sizes

from pyromq import Message
from pyromq.client.cluster.deleted_topics import REFRESHES
from pyromq.errors import MQError
from pyromq.message import SysFlag
from pyromq.remoting.bodies import GroupConfig, MessageQueue, QueueLock, encode_body
from pyromq.remoting.headers import (
    LockQueues,
    PollingInfo,
    QueryConsumerOffset,
    SendMessageBack,
    UnregisterClient,
    UpdateConsumerOffset,
)
from pyromq.testing import Cluster

AT_ONCE = 4  # of each kind in a round: what is left of each kind makes a table grow by as many
SILENCE_SECONDS = 150  # more than a broker waits for heartbeats
# Tables that grow up to a limit: the queue that a pop begins with, latest decisions, and checked names of topics.
BOUNDED = ("rounds", "_decisions._latest", "_decisions._earlier", "_preparation._topics")


class Round:
    """Everything that clients do with topics, groups and connections of their own, and end again."""

    def __init__(self, cluster, admin, producer, caller, caller_to):
        self.cluster, self.admin, self.producer = cluster, admin, producer
        self.caller, self.caller_to = caller, caller_to

    async def topic(self, name):
        await self.admin.create_topic(name, queues=2)
        await self.producer.send(Message(name, b"x", keys=["k"], tags=name))
        await self.admin.topic_status(name)

    async def delayed_message(self, name):
        await self.producer.send(Message(name, b"x", delay_level=1))
        await self.producer.send(Message(name, b"x", delay=1.5))
        await self.cluster.clock.advance(2)

    async def group_of_a_connection_that_stays(self, name):
        await self.admin.create_group(GroupConfig(name=name))
        await self.caller.beat(name, group=name, producer=name)
        await self.caller.ask(UpdateConsumerOffset(name, "orders", 0, 1))
        await self.caller.ask(UnregisterClient(client_id=name, consumer_group=name, producer_group=name))

    async def connection(self, name):
        caller = await self.caller_to(self.cluster.broker)
        await caller.beat(name, group=name, producer=name)
        lock = QueueLock(group=name, client_id=name, queues=[MessageQueue("orders", "broker-a", 0)])
        await caller.ask(LockQueues(), encode_body(lock))
        pull = caller.pull("orders", 0, offset=1_000_000, suspend_ms=15_000)
        await caller.channel.close()
        with pytest.raises(MQError):
            await pull

    async def long_poll(self, name):
        await self.caller.pull(name, 0, offset=1_000_000, suspend_ms=1_000)

    async def pops(self, name):
        await self.producer.send(Message(name, b"x"))
        popper = Popper(self.caller, self.cluster.clock, name, name)
        first, *_ = await popper.pop(invisible_ms=10_000)
        await popper.ack(first)

    async def send_backs(self, name):
        for message in await self.caller.messages(name, 0) + await self.caller.messages(name, 1):
            for level in (1, -1):
                await self.caller.ask(SendMessageBack(message.log_offset, name, level, origin_topic=name))
        await self.cluster.clock.advance(2)

    async def transaction(self, name):
        transactions = Transactions(self.caller, self.cluster.clock, Checked())
        for decision in (SysFlag.COMMIT, SysFlag.ROLLBACK):
            await transactions.end(await transactions.send(topic=name), decision)

    async def names_of_nothing(self, name):
        for ask in (
            lambda: self.admin.topic_status(f"no-{name}"),
            lambda: self.admin.group_state(f"no-{name}"),
            lambda: self.admin.query_by_key(f"no-{name}", "k"),
            lambda: self.admin.delete_topic(f"no-{name}"),
            lambda: self.producer.send(Message(f"no-{name}", b"x")),
            lambda: self.caller.channel.call(QueryConsumerOffset(f"no-{name}", f"no-{name}", 0), timeout=30),
            lambda: self.caller.channel.call(
                PollingInfo(consumer_group=name, topic=f"no-{name}", queue_id=0), timeout=30
            ),
        ):
            try:
                await ask()
            except MQError:
                pass

    async def run(self, number):
        for at in range(AT_ONCE):
            name = f"made-{number}-{at}"
            for act in (
                *(self.topic, self.delayed_message, self.group_of_a_connection_that_stays, self.connection),
                *(self.long_poll, self.pops, self.send_backs, self.transaction, self.names_of_nothing),
            ):
                await act(name)
            await self.admin.delete_topic(name)
            await self.admin.delete_group(name)
        for _ in range(SILENCE_SECONDS // 15):
            await self.cluster.clock.advance(15)
            await self.caller.beat("stays", group="stays")
        for client in (self.admin, self.producer):
            for _ in range(REFRESHES):
                client._cluster._fetched.clear()  # as if a refresh were long ago
                await client._cluster.refresh_all()
        await asyncio.sleep(0)


@pytest.mark.slow
async def test_nothing_is_left_of_what_came_and_went(caller_to):
    async with Cluster(auto_create_topic=False, auto_create_group=False) as cluster:
        admin, producer = await cluster.admin(), await cluster.producer()
        caller = await caller_to(cluster.broker)
        await admin.create_topic("orders", queues=2)
        round = Round(cluster, admin, producer, caller, caller_to)
        found = []
        for number in range(3):
            await round.run(number)
            found.append(sizes(broker=cluster.broker, name_server=cluster.name_server, admin=admin, producer=producer))
        rising = grown(*found[1:], least=AT_ONCE)
        rising = {path: counts for path, counts in rising.items() if not path.rstrip("[]").endswith(BOUNDED)}
    assert len(found[0]) > 200
    assert rising == {}
