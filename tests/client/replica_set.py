"""Brokers of one name whose roles a test decides: it registers them at the name server, as a replica set does."""

import shutil
from contextlib import AsyncExitStack, asynccontextmanager

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.errors import NotTheMaster
from pyromq.net.channel import connect
from pyromq.net.server import Server
from pyromq.remoting.bodies import BrokerRegistration, TopicConfig, TopicConfigTable, encode_body
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import (
    EndTransaction,
    LockQueues,
    RegisterBroker,
    SendBatchMessage,
    SendMessageBack,
    SendMessageV2,
    UnregisterBroker,
    UpdateConsumerOffset,
)
from pyromq.store.store_config import StoreConfig
from pyromq.testing import Cluster
from pyromq.testing.link import Link

NAME = "broker-a"


class ReplicaSet:
    """A name server, and brokers named `broker-a` that do not register by themselves."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.namesrv = cluster.namesrv
        self.brokers = []
        self.links = []
        self.refusals = []
        self._folder = folder
        self._stack = AsyncExitStack()
        self._channel = None

    async def __aenter__(self):
        self._channel = await connect(self.namesrv, Dispatcher(), SystemClock())
        self._stack.push_async_callback(self._channel.close)
        return self

    async def __aexit__(self, *failure):
        await self._stack.aclose()

    async def start(self, *, linked=False, copy_of=None, **settings):
        """Start a broker; clients reach it at the address returned, with `linked` through a link.

        `copy_of` is the number of a broker whose messages and tables it begins with.
        """
        folder = self._folder / f"replica-{len(self.brokers)}"
        if copy_of is not None:
            left_out = shutil.ignore_patterns("*.tmp", "lock", "abort")
            shutil.copytree(self.brokers[copy_of].config.data, folder, ignore=left_out)
        store = StoreConfig(
            folder, segment_bytes=4 << 20, consume_queue_entries=3000, index_slots=5000, index_entries=20000
        )
        config = BrokerConfig(folder, name=NAME, port=0, namesrv=(), store=store, default_topic_queues=2, **settings)
        broker = await self._stack.enter_async_context(Broker(config, SystemClock()))
        self.brokers.append(broker)
        if not linked:
            return broker.address
        self.links.append(await self._stack.enter_async_context(Link(broker.address)))
        return self.links[-1].address

    async def refusing(self, master):
        """Start a server that refuses everything as a replica which knows this master; return its address."""
        self.refusals.append(Refusing(master))
        server = Server(Dispatcher(self.refusals[-1]), SystemClock(), host="127.0.0.1", port=0)
        await server.start()
        self._stack.push_async_callback(server.close)
        return f"127.0.0.1:{server.port}"

    async def register(self, address, *, broker_id=0, epoch=1, topics=("TBW102", "orders")):
        table = TopicConfigTable(
            topics={name: TopicConfig(name=name, read_queues=2, write_queues=2) for name in topics}
        )
        header = RegisterBroker(
            broker_name=NAME, broker_address=address, cluster="c", broker_id=broker_id, ha_address="", epoch=epoch
        )
        body = encode_body(BrokerRegistration(topics=table))
        return (await self._channel.call(header, body, timeout=30)).check()

    async def unregister(self, address, *, broker_id=0, epoch=1):
        header = UnregisterBroker(
            broker_name=NAME, broker_address=address, cluster="c", broker_id=broker_id, epoch=epoch
        )
        (await self._channel.call(header, timeout=30)).check()

    def kill(self, number):
        """Break a broker's connections and refuse new ones, as the end of its process does; its store stays open."""
        self.brokers[number].cut_connections()

    def stored(self, number, topic="orders"):
        """Return the bodies stored at a broker, queue by queue."""
        store = self.brokers[number].store
        places = ((each, n) for each in store.queue_ids(topic) for n in range(store.max_offset(topic, each)))
        return [store.message(topic, queue_id, offset).body for queue_id, offset in places]


class Refusing:
    """Answers what only a master does as a replica answers it."""

    def __init__(self, master):
        self.master = master
        self.refused = 0

    def _refuse(self, header, call):
        self.refused += 1
        raise NotTheMaster(self.master)

    @answers(SendMessageV2)
    def send(self, header, call):
        self._refuse(header, call)

    @answers(SendBatchMessage)
    def send_batch(self, header, call):
        self._refuse(header, call)

    @answers(SendMessageBack)
    def send_back(self, header, call):
        self._refuse(header, call)

    @answers(EndTransaction)
    def end(self, header, call):
        self.refused += 1
        raise NotTheMaster(self.master, 11)

    @answers(LockQueues)
    def lock(self, header, call):
        self._refuse(header, call)

    @answers(UpdateConsumerOffset)
    def commit(self, header, call):
        self._refuse(header, call)


@asynccontextmanager
async def replica_set(folder):
    async with Cluster(brokers=0) as cluster, ReplicaSet(cluster, folder) as replicas:
        yield replicas
