"""The blocking clients: the async ones, called from plain threads."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import PATIENCE_SECONDS

import pyromq
from pyromq import (
    Admin,
    BatchTransactions,
    Consumer,
    ConsumerConfig,
    Decision,
    Message,
    NoNameServer,
    NotRunning,
    Producer,
    ProducerConfig,
    PullConsumer,
    TransactionProducer,
    UsageError,
)
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.blocking.consumers import QueueReader
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.testing import BlockingCluster

FRESH_ROUTES = ConsumerConfig(route_refresh_seconds=0.01)


@pytest.fixture
def topic(request):
    return request.node.name[:100].replace("[", "-").replace("]", "")


@pytest.fixture
def producer(served):
    with Producer("p", served.namesrv) as producer:
        yield producer


def test_messages_are_sent_and_read(served, producer, topic):
    for n in range(10):
        producer.send(Message(topic, b"%d" % n), ordering_key="k")
    with PullConsumer("g", served.namesrv) as consumer:
        consumer.assign(consumer.queues(topic))
        found = []
        for message in consumer:
            found.append(int(message.body))
            if len(found) == 10:
                break
    assert found == list(range(10))
    with PullConsumer("g", served.namesrv) as consumer:
        assert sum(consumer.committed(queue) or 0 for queue in consumer.queues(topic)) == 10


def test_sends_from_many_threads_all_arrive(served, producer, topic):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: producer.send(Message(topic, b"%d" % n)), range(200)))
    assert len({(r.queue, r.queue_offset) for r in results}) == 200


def test_messages_sent_soon_keep_their_order(producer, topic):
    outcomes = [producer.send_soon(Message(topic, b"%d" % n), ordering_key="k") for n in range(500)]
    last = producer.send(Message(topic, b"500"), ordering_key="k")
    assert [o.result().queue_offset for o in outcomes] == list(range(500))
    assert last.queue_offset == 500


def test_sending_soon_waits_for_room(served, topic):
    with Producer("p", served.namesrv, config=ProducerConfig(max_in_flight=10)) as producer:
        outcomes = [producer.send_soon(Message(topic, b"1")) for _ in range(100)]
    assert all(o.done() for o in outcomes)


def test_batches_one_way_messages_and_queues(producer, topic):
    queue = producer.queues(topic)[1]
    producer.send_one_way(Message(topic, b"1"), queue=queue)
    assert producer.send_batch([Message(topic, b"2"), Message(topic, b"3")], queue=queue).queue_offset == 1
    producer.flush()


def test_a_consumer_seeks_pauses_and_polls(served, producer, topic):
    queue = producer.send(Message(topic, b"1"), ordering_key="k").queue
    with PullConsumer("g", served.namesrv) as consumer:
        consumer.assign([queue])
        assert consumer.assignment == [queue]
        assert len(consumer.poll()) == 1
        consumer.seek_to_begin(queue)
        consumer.pause([queue])
        assert consumer.poll(0.02) == []
        consumer.resume([queue])
        assert len(consumer.poll()) == 1
        consumer.seek_to_end(queue)
        consumer.seek_to_time(queue, 0)
        consumer.seek(queue, 1)
        assert consumer.position(queue) == 1
        consumer.commit()
        assert consumer.committed(queue) == 1
        assert (consumer.min_offset(queue), consumer.max_offset(queue), consumer.offset_by_time(queue, 0)) == (0, 1, 0)
        assert consumer.pull(queue, 0).messages[0].body == b"1"


def test_an_exception_leaves_the_latest_poll_uncommitted(served, producer, topic):
    queue = producer.send(Message(topic, b"1"), ordering_key="k").queue
    with pytest.raises(ZeroDivisionError), PullConsumer("g", served.namesrv) as consumer:
        consumer.assign([queue])
        consumer.poll()
        raise ZeroDivisionError
    with PullConsumer("g", served.namesrv) as consumer:
        assert consumer.committed(queue) is None


def test_iteration_ends_when_another_thread_closes(served, producer, topic):
    queue = producer.send(Message(topic, b"1"), ordering_key="k").queue
    consumer = PullConsumer("g", served.namesrv)
    consumer.start()
    consumer.assign([queue])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: [m.body for m in consumer])
        while consumer.position(queue) == 0:
            pass
        consumer.close()
        assert reading.result(PATIENCE_SECONDS) == [b"1"]


def test_an_admin_does_what_the_async_one_does(served, topic):
    with Admin(served.namesrv) as admin:
        admin.create_topic(topic, 2)
        assert topic in admin.topics()
        assert len(admin.topic_status(topic)) == 2
        assert [f.ok for f in Admin.diagnose(served.namesrv, topic)] == [True, True, True]
        with Producer("p", served.namesrv) as producer:
            sent = producer.send(Message(topic, b"1", keys="k"))
        assert [message.body for message in admin.query_by_key(topic, "k")] == [b"1"]
        found = [admin.view(sent.message_id, topic), admin.view(sent.offset_message_id)]
        assert [message.body for message in found] == [b"1", b"1"]
        admin.delete_topic(topic)
        assert topic not in admin.topics()


@pytest.mark.parametrize("client", [Producer, PullConsumer, lambda group, namesrv: Admin(namesrv)])
def test_starting_with_nothing_listening_fails_and_may_be_tried_again(client):
    made = client("g", "127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1 refuses connections.*; start one"):
            made.start()


@pytest.mark.parametrize(
    "make",
    [
        lambda namesrv: Producer("g", namesrv),
        lambda namesrv: TransactionProducer("g", namesrv, check=lambda message: Decision.COMMIT),
        lambda namesrv: Consumer("g", namesrv),
    ],
)
def test_what_was_closed_is_not_started_again(served, make):
    client = make(served.namesrv)
    if isinstance(client, Consumer):
        client.subscribe("orders", print)
    with client:
        pass
    for _ in range(2):
        with pytest.raises(UsageError, match="of group g was closed"):
            client.start()
    client.close()


def test_inside_a_running_loop_the_async_class_is_named(producer, topic):
    async def send():
        producer.send(Message(topic, b"1"))

    with pytest.raises(UsageError, match="use the Async class"):
        asyncio.run(send())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Producer("g", "127.0.0.1:1"),
        lambda: Consumer("g", "127.0.0.1:1"),
        lambda: PullConsumer("g", "127.0.0.1:1"),
        lambda: Admin("127.0.0.1:1"),
        lambda: TransactionProducer("g", "127.0.0.1:1", check=lambda message: Decision.COMMIT),
        lambda: BatchTransactions("g", "127.0.0.1:1"),
        lambda: QueueReader("g", "127.0.0.1:1"),
        BlockingCluster,
    ],
)
async def test_every_blocking_class_leaves_a_running_loop_alone(make):
    loop = asyncio.get_running_loop()
    for _ in range(2):
        with pytest.raises(UsageError, match="inside a running event loop"), make():
            raise AssertionError("started")
        assert asyncio.get_running_loop() is loop


def test_a_pull_consumer_hands_out_nothing_inside_a_running_loop(served, producer, topic):
    async def read(consumer):
        return next(consumer)

    for body in (b"1", b"2"):
        producer.send(Message(topic, body), ordering_key="k")
    with PullConsumer("g", served.namesrv) as consumer:
        consumer.assign(consumer.queues(topic))
        assert next(consumer).body == b"1"
        with pytest.raises(UsageError, match="use the Async class"):
            asyncio.run(read(consumer))
        assert next(consumer).body == b"2"


def test_a_closed_client_is_not_running(served, topic):
    with Producer("p", served.namesrv) as producer:
        pass
    with pytest.raises(NotRunning):
        producer.send(Message(topic, b"1"))
    with pytest.raises(NotRunning):
        producer.send_soon(Message(topic, b"1"))


@pytest.mark.parametrize(
    ("blocking", "asynchronous"), [(Producer, AsyncProducer), (PullConsumer, AsyncPullConsumer), (Admin, AsyncAdmin)]
)
def test_both_kinds_have_the_same_methods(blocking, asynchronous):
    def names(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    inner = {
        "begin",
        "begin_soon",
        "check_open",
        "room",
        "in_flight",
        "is_full",
        "hand_back_latest",
        "next_buffered",
    }  # what the blocking kind itself builds on
    assert names(asynchronous) - names(blocking) <= inner
    assert names(blocking) - names(asynchronous) <= {"diagnose"}


@pytest.mark.parametrize("part", ["members", "servers", "overviews", "exports", "delay_levels"])
def test_parts_of_both_admins_have_the_same_methods(part):
    def names(of):
        return {name for name in dir(of) if not name.startswith("_")}

    assert names(getattr(Admin(), part)) == names(getattr(AsyncAdmin(), part))


def test_every_public_name_can_be_loaded():
    for name in pyromq.__all__:
        value = getattr(pyromq, name)
        assert not isinstance(value, type) or value.__name__ == name
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = pyromq.nothing_such


def test_a_listener_for_queues_runs_in_a_thread_where_it_may_call_the_consumer(served, topic):
    with Admin(served.namesrv) as admin, PullConsumer("g", served.namesrv, config=FRESH_ROUTES) as consumer:
        admin.create_topic(topic, queues=1)
        assigned = threading.Event()

        def take(queues):
            consumer.assign(queues)
            assigned.set()

        consumer.assign(consumer.watch_queues(topic, take))
        admin.create_topic(topic, queues=2, replace=True)

        assert assigned.wait(PATIENCE_SECONDS)
        assert len(consumer.assignment) == 2
        consumer.unwatch_queues(topic)
