"""Plain messages to queues that are known go a compiled way, where there is one: what comes of them is the same."""

import asyncio
import json
import struct
from contextlib import asynccontextmanager, suppress

import pytest

from pyromq import speedups
from pyromq.client.client_config import ProducerConfig
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import BrokerError, DeadlineExceeded, MQError
from pyromq.message import Message, SendResult, SendStatus
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import BrokerRegistration, TopicConfig, TopicConfigTable, encode_body
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import FrameSplitter, decode_request_with_fields
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import Heartbeat, RegisterBroker, UnregisterClient
from pyromq.testing.cluster import Cluster
from pyromq.testing.fake_clock import settle

QUEUES = 2


class Peer:
    """What a producer takes for a broker; `answer` gives each send's header, or None to say nothing."""

    def __init__(self):
        self.answer = stored
        self.sends = []
        self._writers = []

    async def serve(self, reader, writer):
        splitter = FrameSplitter()
        self._writers.append(writer)
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                for frame in splitter.split(data):
                    call = decode_request_with_fields(*frame)
                    if call.code in (Heartbeat.code, UnregisterClient.code):
                        self.reply(call, {"code": 0})
                    elif not call.flag & ONE_WAY:
                        self.sends.append(call)
                        self.reply(call, self.answer(call))
        writer.close()

    def reply(self, call, header):
        if header is not None:
            raw = json.dumps({"flag": 1, "opaque": call.opaque, **header}).encode()
            self._writers[-1].write(struct.pack(">II", 4 + len(raw), len(raw)) + raw)

    def hang_up(self):
        self._writers[-1].transport.abort()


def stored(call, **fields):
    fields = {"msgId": "id", "queueId": str(call.header.queue_id), "queueOffset": "7", **fields}
    return {"code": 0, "extFields": {name: value for name, value in fields.items() if value is not None}}


@asynccontextmanager
async def peer_and_producer(**settings):
    """A producer for which both queues are known: from now on plain messages may go the compiled way."""
    async with Cluster(brokers=0) as cluster:
        peer = Peer()
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        names = await connect(cluster.namesrv, Dispatcher(), cluster.clock)
        topics = TopicConfigTable(topics={"t": TopicConfig(name="t", read_queues=QUEUES, write_queues=QUEUES)})
        header = RegisterBroker(broker_name="b", broker_address=address, cluster="c", broker_id=0)
        (await names.call(header, encode_body(BrokerRegistration(topics=topics)), timeout=30)).check()
        producer = AsyncProducer("g", cluster.namesrv, config=ProducerConfig(**settings), clock=cluster.clock)
        async with producer:
            for _ in range(QUEUES):
                await producer.send(Message("t", b"first"))
            peer.sends.clear()
            yield peer, producer, cluster.clock
        await names.close()
        server.close()


async def outcome(send):
    try:
        result = await send
    except MQError as error:
        return type(error), str(error)
    return result.status, result.queue_offset, result.offset_message_id, result.transaction_id, result.recall_handle


@pytest.mark.skipif(not speedups.is_active, reason=speedups.reason)
async def test_there_is_a_compiled_way():
    async with peer_and_producer() as (_, producer, _):
        sent = producer._fast_outbox.send(Message("t", b"2", keys="k"), frozenset(), False)
        assert type(await sent) is SendResult
        assert producer._fast_outbox.send(Message("t", b"2", delay_level=1), frozenset(), False) is None


async def test_an_answer_means_what_it_means_to_a_message_with_a_chosen_queue():
    odd = ["1", "01", "-1", "+1", "1.0", "x", "", "9" * 30, "1_0", "１", 1, True, None]
    async with peer_and_producer() as (peer, producer, _):
        queue = (await producer.queues("t"))[1]
        for name in ("msgId", "queueId", "queueOffset", "transactionId", "recallHandle", "other"):
            for value in odd:
                outcomes = []
                for wish in ({}, {}, {"queue": queue}):  # in turns: one of the first two goes to that queue
                    peer.answer = lambda call, name=name, value=value: stored(call, **{name: value})
                    found = await outcome(producer.send(Message("t", b"2"), **wish))
                    if peer.sends[-1].header.queue_id == queue.queue_id:
                        outcomes.append(found)
                assert outcomes[0] == outcomes[1], (name, value)


async def test_requests_are_those_of_a_message_with_a_chosen_queue():
    async with peer_and_producer() as (peer, producer, _):
        message = Message("t", b"2", tags="a", keys=("b", '"'), properties={"größe": "\\"}, wait_stored=False)
        queues = await producer.queues("t")
        await producer.send(message)
        await producer.send(message, queue=queues[peer.sends[0].header.queue_id])
        fast, plain = peer.sends
        assert (fast.header, fast.body, fast.flag) == (plain.header, plain.body, plain.flag)
        assert plain.opaque == fast.opaque + 1


async def test_requests_of_an_account_are_signed_as_those_of_a_message_with_a_chosen_queue():
    account = ConnectionConfig(access_key="orders-app", secret_key="secret")
    async with peer_and_producer(connections=account, compress_from_bytes=1 << 20) as (peer, producer, _):
        queues = await producer.queues("t")
        for text in (b"2", b"x" * (1 << 18)):
            message = Message("t", text, tags="a", keys=("b", '"'), properties={"größe": "\\"})
            if speedups.is_active:
                assert type(await producer._fast_outbox.send(message, frozenset(), False)) is SendResult
            else:
                await producer.send(message)
            await producer.send(message, queue=queues[peer.sends[0].header.queue_id])
            fast, plain = peer.sends
            assert (fast.fields, fast.body, fast.flag) == (plain.fields, plain.body, plain.flag)
            unsigned = {name: value for name, value in fast.fields.items() if name not in {"AccessKey", "Signature"}}
            assert fast.fields == {**unsigned, **account.signer.sign(unsigned, fast.body)}
            peer.sends.clear()


async def test_ids_are_those_of_one_counter():
    async with peer_and_producer() as (peer, producer, clock):
        messages = [Message("t", b"2") for _ in range(6)]
        for number, message in enumerate(messages):
            await producer.send(message, timeout=None if number % 2 else 3.0)  # the compiled way, and the other
        first = int(messages[0].message_id, 16)
        assert [int(message.message_id, 16) - first for message in messages] == list(range(6))
        clock.jump(0.002)
        await producer.send(later := Message("t", b"3"))
        assert int(later.message_id, 16) - first == (2 << 16) + 6
        assert {call.header.properties.count(later.message_id) for call in peer.sends[-1:]} == {1}


async def test_many_messages_of_one_turn_arrive_in_order():
    async with peer_and_producer() as (peer, producer, _):
        for sent in [producer.send_soon(Message("t", b"%d" % n)) for n in range(100)]:
            await sent
        assert [call.body for call in peer.sends] == [b"%d" % n for n in range(100)]


async def test_a_status_other_than_stored_is_told():
    async with peer_and_producer() as (peer, producer, _):
        peer.answer = lambda call: {**stored(call), "code": 10}
        assert (await producer.send(Message("t", b"2"))).status is SendStatus.FLUSH_DISK_TIMEOUT


async def test_a_refusal_that_another_broker_may_not_share_is_retried_unless_sent_soon():
    async with peer_and_producer() as (peer, producer, _):
        answers = iter([{"code": 1, "remark": "busy"}, None])
        peer.answer = lambda call: next(answers) or stored(call)
        assert (await producer.send(Message("t", b"2"))).queue_offset == 7
        assert [call.body for call in peer.sends] == [b"2", b"2"]
        peer.answer = lambda call: {"code": 1, "remark": "busy"}
        with pytest.raises(BrokerError, match="busy"):
            await producer.send_soon(Message("t", b"3"))
        assert len(peer.sends) == 3
        assert producer.in_flight == 0


async def test_a_broken_connection_is_made_again_and_the_message_sent_again():
    async with peer_and_producer() as (peer, producer, _):
        peer.answer = lambda call: None
        sent = asyncio.ensure_future(producer.send(Message("t", b"2")))
        while not peer.sends:
            await asyncio.sleep(0)
        peer.answer = stored
        peer.hang_up()
        assert (await sent).queue_offset == 7
        assert [call.body for call in peer.sends] == [b"2", b"2"]
        assert producer.in_flight == 0


async def test_a_message_without_an_answer_fails_at_its_deadline():
    async with peer_and_producer(timeout=3.0, retries=0) as (peer, producer, clock):
        peer.answer = lambda call: None
        sent = asyncio.ensure_future(producer.send(Message("t", b"2")))
        while not peer.sends:
            await asyncio.sleep(0)
        await clock.advance(3.0)
        with pytest.raises(DeadlineExceeded, match="did not answer request 310 within 3 s"):
            await sent
        assert producer.in_flight == 0


async def test_a_cancelled_message_stays_in_flight_until_its_answer_comes():
    async with peer_and_producer() as (peer, producer, _):
        peer.answer = lambda call: None
        sent = asyncio.ensure_future(producer.send(Message("t", b"2")))
        while not peer.sends:
            await asyncio.sleep(0)
        sent.cancel()
        await settle()
        assert producer.in_flight == 1
        peer.reply(peer.sends[0], stored(peer.sends[0]))
        await producer.flush()
        assert sent.cancelled()


async def test_messages_in_flight_are_bounded():
    async with peer_and_producer(max_in_flight=2) as (peer, producer, _):
        most = 0

        def answer(call):
            nonlocal most
            most = max(most, producer.in_flight)
            return stored(call)

        peer.answer = answer
        await asyncio.gather(*(producer.send(Message("t", b"%d" % n)) for n in range(9)))
        assert (most, len(peer.sends)) == (2, 9)
