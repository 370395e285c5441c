"""kombu's connections, queues and exchanges on a real broker."""

import importlib
import json
import select
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.pidbox import Mailbox
from tests.waiting import PATIENCE_SECONDS, wait_until

import pyromq.celery
from pyromq import ConsumeFrom, ConsumerConfig, Message, SimpleConsumer
from pyromq.celery import task_feed
from pyromq.celery.process_queues import ProcessQueues
from pyromq.celery.queue_names import exchange_topic
from pyromq.celery.rocketmq_channel import MAX_UNLIMITED
from pyromq.celery.rocketmq_connection import RocketConnection
from pyromq.clock import SystemClock
from pyromq.errors import IllegalMessage, IllegalName, NoNameServer, UsageError
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.testing import BlockingCluster

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


def publish(connection, body, queue="tasks", **more):
    declared = more.pop("declare", [Queue(queue)])
    Producer(connection).publish(body, routing_key=queue, declare=declared, **more)


class Hub:
    """An event loop that waits for one file descriptor."""

    def add_reader(self, fileno, callback):
        self.fileno, self.callback = fileno, callback

    def remove(self, fileno):
        assert fileno == self.fileno

    def turn(self):
        assert select.select([self.fileno], [], [], PATIENCE_SECONDS)[0]
        self.callback()


class Receiving:
    """Consumes a queue on a channel of its own; `messages` has kombu's messages in order of arrival."""

    def __init__(self, connection, *queues, prefetch=None, no_ack=False):
        self.connection = connection
        self.channel = connection.channel()
        self.messages = []
        if prefetch is not None:
            self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(self.channel, list(queues), on_message=self.messages.append, no_ack=no_ack)
        self.consumer.consume()

    def until(self, count):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.messages) < count and time.monotonic() < deadline:
            self.drain(0.5)
        return [message.decode() for message in self.messages]

    def drain(self, seconds):
        try:
            self.connection.drain_events(timeout=seconds)
        except TimeoutError:
            pass


def test_a_callback_that_raises_in_an_event_loop_delays_no_other_message(connection):
    for number in range(3):
        publish(connection, number)
    seen = []

    def work(message):
        seen.append(message)
        if len(seen) == 1:
            raise ValueError("no")

    Consumer(connection.channel(), [Queue("tasks")], on_message=work).consume()
    transport, hub = connection.transport, Hub()
    transport.register_with_event_loop(connection.connection, hub)
    wait_until(lambda: len(transport.inbox._deliveries) == 3)
    with pytest.raises(ValueError, match="no"):
        hub.turn()
    while len(seen) < 3:
        hub.turn()
    transport.on_unregister_from_event_loop(connection.connection, hub)


def test_an_acknowledged_message_is_gone_and_a_requeued_one_comes_again(cluster, connection):
    for number in range(3):
        publish(connection, {"number": number})
    receiving = Receiving(connection, Queue("tasks"))
    assert sorted(each["number"] for each in receiving.until(3)) == [0, 1, 2]
    first, second, third = receiving.messages
    assert not first.delivery_info["redelivered"]
    first.ack()
    second.requeue()
    receiving.until(4)
    assert receiving.messages[3].decode() == second.decode()
    assert receiving.messages[3].delivery_info["redelivered"]
    receiving.messages[3].ack()
    third.reject()
    receiving.channel.close()
    cluster.advance(120)
    again = Receiving(connection, Queue("tasks"))
    again.drain(0.1)
    assert again.messages == []
    dead = cluster.simple_consumer("readers", config=FIRST)
    dead.subscribe("%DLQ%celery")
    [message] = dead.receive()
    assert message.properties["RETRY_REASON"] == "rejected"


def test_the_prefetch_count_limits_unacknowledged_messages(connect):
    for number in range(5):
        publish(connect(), number)
    receiving, other = Receiving(connect(), Queue("tasks"), prefetch=2), None
    receiving.until(2)
    receiving.drain(0.2)
    assert len(receiving.messages) == 2
    other = Receiving(connect(), Queue("tasks"), prefetch=3)
    other.until(3)
    receiving.messages[0].ack()
    for message in other.messages:
        message.ack()
    receiving.drain(0.2)
    assert sorted(each.decode() for each in receiving.messages + other.messages) == [0, 1, 2, 3, 4]


def test_messages_of_a_queue_arrive_in_order(connection):
    for number in range(20):
        publish(connection, number)
    assert Receiving(connection, Queue("tasks")).until(20) == list(range(20))


def test_a_queue_that_is_consumed_later_waits_for_no_other(connection, monkeypatch):
    monkeypatch.setattr(task_feed, "WAIT_SECONDS", 2 * PATIENCE_SECONDS)
    publish(connection, "late", "second")
    receiving = Receiving(connection, Queue("first"))
    receiving.drain(0.1)
    receiving.consumer.add_queue(Queue("second"))
    receiving.consumer.consume()
    assert receiving.until(1) == ["late"]


def test_waiting_messages_of_a_cancelled_consumer_are_visible_at_once(connection):
    for number in range(3):
        publish(connection, number)
    receiving = Receiving(connection, Queue("tasks"))
    wait_until(lambda: receiving.channel._room() == MAX_UNLIMITED - 3)
    receiving.consumer.cancel()
    other = Receiving(connection, Queue("tasks"))
    assert sorted(other.until(3)) == [0, 1, 2]


def test_an_expired_message_is_dropped(connection):
    publish(connection, "stale", expiration=0.001)
    publish(connection, "fresh", expiration=60)
    time.sleep(0.002)
    assert connection.channel().basic_get("tasks").decode() == "fresh"


def test_a_worker_receives_an_expired_task_to_revoke_it(connection):
    publish(connection, "stale", headers={"expires": "2020-01-01T00:00:00"}, expiration=0.001)
    time.sleep(0.002)
    assert connection.channel().basic_get("tasks").decode() == "stale"


def test_text_is_stored_as_text(cluster, connection):
    publish(connection, {"name": "Zoë"})
    with SimpleConsumer("looking", cluster.namesrv, config=FIRST) as looking:
        looking.subscribe("tasks")
        [message] = looking.receive()
    assert json.loads(json.loads(message.body)["body"]) == {"name": "Zoë"}
    publish(connection, {"name": "Zoë"}, serializer="pickle")
    receiving = Receiving(connection, Queue("tasks"))
    receiving.consumer.accept = {"application/json", "application/x-python-serialize"}
    assert receiving.until(2) == [{"name": "Zoë"}] * 2


def test_what_a_closed_channel_had_comes_again_at_once(connect):
    connection = connect()
    publish(connection, "work")
    receiving = Receiving(connection, Queue("tasks"))
    receiving.until(1)
    connection.release()
    other = Receiving(connect(), Queue("tasks"))
    assert other.until(1) == ["work"]
    other.messages[0].ack()


def test_an_eta_is_kept_by_the_broker():
    with BlockingCluster(clock=SystemClock()) as cluster, Connection(f"rocketmq://{cluster.namesrv}") as connection:
        eta = datetime.now(UTC) + timedelta(seconds=0.5)
        publish(connection, "soon", headers={"eta": eta.isoformat()})
        assert Receiving(connection, Queue("tasks")).until(1) == ["soon"]
        assert eta <= datetime.now(UTC)


def test_priorities_of_a_queue_with_a_largest_priority_are_kept(connection):
    queue = Queue("urgent", max_priority=9)
    for number, priority in enumerate((0, 3, 9, 5, 9)):
        publish(connection, [priority, number], "urgent", declare=[queue], priority=priority)
    receiving = Receiving(connection, queue, prefetch=1)
    found = []
    for count in range(1, 6):
        found.append(receiving.until(count)[-1])
        receiving.messages[-1].ack()
    assert found[:2] in ([[9, 2], [9, 4]], [[9, 4], [9, 2]])
    assert sorted(found[2:4]) == [[3, 1], [5, 3]]  # both belong to step 3
    assert found[4] == [0, 0]


def test_a_fanout_exchange_reaches_every_process_that_is_there(connect):
    exchange = Exchange("news", type="fanout")
    receivers = [Receiving(connect(), Queue("", exchange, exclusive=True), no_ack=True) for _ in range(2)]
    Producer(connect()).publish("extra", exchange=exchange, declare=[exchange])
    assert [each.until(1) for each in receivers] == [["extra"], ["extra"]]


def test_an_undeclared_exchange_reaches_the_processes_that_read_it(connect):
    receiving = Receiving(connect(), Queue("", Exchange("news", type="fanout"), exclusive=True), no_ack=True)
    Producer(connect()).publish("extra", exchange="news")
    assert receiving.until(1) == ["extra"]


def test_a_message_that_kombu_has_not_made_stops_no_reading_of_an_exchange(cluster, connect):
    exchange = Exchange("events", type="topic")
    receiving = Receiving(connect(), Queue("mine", exchange, routing_key="task.#", auto_delete=True), no_ack=True)
    foreign = {"headers": {}, "properties": {"delivery_info": {"routing_key": 7}}}
    cluster.producer().send(Message(exchange_topic("events"), json.dumps(foreign).encode()))
    Producer(connect(), exchange=exchange).publish("own", routing_key="task.sent")
    assert receiving.until(1) == ["own"]


def test_a_topic_exchange_matches_routing_keys(connect):
    exchange = Exchange("events", type="topic")
    receiving = Receiving(connect(), Queue("mine", exchange, routing_key="task.#", auto_delete=True), no_ack=True)
    for key in ("worker.online", "task.sent", "task.a.b"):
        Producer(connect()).publish(key, exchange=exchange, routing_key=key, declare=[exchange], delivery_mode=1)
    assert receiving.until(2) == ["task.sent", "task.a.b"]


def test_a_reply_reaches_the_queue_of_the_process_that_asks(connect):
    asking = Receiving(connect(), Queue("reply-1", auto_delete=True, durable=False), no_ack=True)
    other = Receiving(connect(), Queue("reply-2", auto_delete=True, durable=False), no_ack=True)
    Producer(connect()).publish("42", routing_key="reply-1", delivery_mode=1)
    assert asking.until(1) == ["42"]
    other.drain(0.1)
    assert other.messages == []


def test_a_persistent_reply_reaches_the_queue_of_the_process_that_asks(cluster, connect):
    asking = Receiving(connect(), Queue("reply-5", auto_delete=True), no_ack=True)
    worker = connect(namesrv=cluster.namesrv.replace("127.0.0.1", "localhost"))  # shares no queues, as another process
    Producer(worker).publish("42", routing_key="reply-5", delivery_mode=2, correlation_id="1234")
    assert asking.until(1) == ["42"]
    assert "reply-5" not in cluster.admin().topics()
    publish(connect(), "first", "durable")
    Producer(connect()).publish("second", routing_key="durable", correlation_id="1234")
    assert Receiving(connect(), Queue("durable")).until(2) == ["first", "second"]


def test_a_reply_waits_for_the_connection_that_reads_it(connect):
    queue = Queue("reply-3", auto_delete=True, durable=False)
    queue(connect().channel()).declare()
    for number in (1, 2):
        Producer(connect()).publish(number, routing_key="reply-3", delivery_mode=1)
    Producer(connect()).publish("stale", routing_key="reply-3", delivery_mode=1, expiration=0.001)
    reading = connect()
    assert Receiving(reading, queue, no_ack=True).until(2) == [1, 2]
    Producer(connect()).publish("direct", routing_key="reply-3", delivery_mode=1)
    wait_until(lambda: (message := queue(reading.channel()).get(no_ack=True)) and message.decode() == "direct")


def test_a_reply_without_acknowledgement_comes_again(connect):
    queue = Queue("reply-4", auto_delete=True, durable=False)
    channel = connect().channel()
    queue(channel).declare()
    for number in (1, 2):
        Producer(connect()).publish(number, routing_key="reply-4", delivery_mode=1)
    receiving = Receiving(connect(), queue)
    receiving.until(2)
    receiving.messages[1].ack()
    receiving.messages[0].requeue()
    message = queue(channel).get()
    assert (message.decode(), message.delivery_info["redelivered"]) == (1, True)
    channel.close()
    message = queue(connect().channel()).get()
    assert message.decode() == 1
    message.ack()
    assert queue(connect().channel()).get() is None


def test_queues_close_after_a_binding_that_failed():
    queues = ProcessQueues()
    with pytest.raises(NoNameServer):
        queues.declare("reply", is_auto_deleted=True, rocketmq=RocketConnection(Connection("rocketmq://127.0.0.1:1")))
    queues.close()


def test_replies_without_a_reader_are_limited(connect, monkeypatch):
    monkeypatch.setattr("pyromq.celery.process_queues.MAX_KEPT", 3)
    connection = connect()
    for name in ("full", "behind"):
        Queue(name, auto_delete=True, durable=False)(connection.channel()).declare()
    for number in range(5):
        Producer(connection).publish(number, routing_key="full", delivery_mode=1)
    Producer(connection).publish("last", routing_key="behind", delivery_mode=1)
    queues = connection.transport.process_queues
    wait_until(lambda: queues.take("behind") is not None)
    assert [json.loads(queues.take("full").raw["body"]) for _ in range(3)] == [2, 3, 4]
    assert queues.take("full") is None


def test_remote_control_is_answered(connect):
    mailbox = Mailbox("control", type="fanout")
    serving = connect()
    node = mailbox(serving).Node("worker", state=None)
    node.handlers["ping"] = lambda state, **_: "pong"
    node.listen(channel=serving.channel())
    asking = connect()
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            try:
                serving.drain_events(timeout=0.1)
            except TimeoutError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert mailbox(asking)._broadcast("ping", reply=True, timeout=5, limit=1) == [{"worker": "pong"}]
    finally:
        ended.set()
        thread.join()


def test_an_unroutable_message_is_refused(connection):
    exchange = Exchange("media", type="direct")
    with pytest.raises(UsageError, match="no queue is bound to exchange 'media' with routing key 'video'"):
        Producer(connection).publish("x", exchange=exchange, routing_key="video", declare=[exchange])
    queue = Queue("videos", exchange, routing_key="video")
    Producer(connection).publish("x", exchange=exchange, routing_key="video", declare=[queue])
    assert Receiving(connection, queue).until(1) == ["x"]


def test_messages_are_counted_purged_and_got_one_by_one(connection):
    for number in range(3):
        publish(connection, number, "a.b:c")
    channel = connection.channel()
    assert channel.queue_declare("a.b:c", passive=True).message_count == 3
    message = channel.basic_get("a.b:c")
    message.ack()
    assert channel.queue_purge("a.b:c") == 2
    assert channel.basic_get("a.b:c") is None
    channel.queue_delete("a.b:c")
    with pytest.raises(connection.channel_errors, match=r"no queue 'a\.b:c'"):
        channel.queue_declare("a.b:c", passive=True)


def test_a_body_of_another_sender_becomes_a_dead_letter(cluster, connection):
    publish(connection, "mine")
    cluster.producer().send(Message("tasks", b"not of kombu"))
    receiving = Receiving(connection, Queue("tasks"))
    assert receiving.until(1) == ["mine"]
    receiving.messages[0].ack()
    receiving.drain(0.3)
    dead = cluster.simple_consumer("readers", config=FIRST)
    dead.subscribe("%DLQ%celery")
    wait_until(lambda: cluster.broker.topics.find("%DLQ%celery") is not None)
    [message] = dead.receive()
    assert (message.body, message.properties["RETRY_REASON"]) == (b"not of kombu", "the body is not a message of kombu")


def test_a_body_that_is_too_large_is_refused_with_advice(connection):
    with pytest.raises(IllegalMessage, match=r"queue 'tasks': .* 4194304 .*; set task_compression='gzip'"):
        publish(connection, "x" * (4 << 20))
    with pytest.raises(IllegalMessage, match=r"exchange '': .* 4194304 .*; set result_compression='gzip'"):
        Producer(connection).publish("x" * (4 << 20), routing_key="reply", delivery_mode=1)


def test_the_name_of_a_queue_leaves_room_for_the_group_s_retry_topic(connect):
    longest = "q" * 113
    publish(connect(), "x", longest)
    assert Receiving(connect(), Queue(longest)).until(1) == ["x"]
    with pytest.raises(IllegalName, match="group celery has at most 113 characters; choose a shorter name"):
        publish(connect(), "x", longest + "q")
    with pytest.raises(IllegalName, match="group shopkeepers has at most 108 characters"):
        publish(connect(group="shopkeepers"), "x", longest)


def test_messages_are_found_by_the_task_s_id_and_name(cluster, connection):
    publish(connection, "x", headers={"task": "shop.pay", "id": "1234"})
    with SimpleConsumer("looking", cluster.namesrv, config=FIRST) as looking:
        looking.subscribe("tasks", tags="shop.pay")
        [message] = looking.receive()
    assert (message.keys, json.loads(message.body)["headers"]["id"]) == (["1234"], "1234")


def test_a_virtual_host_is_a_namespace(cluster, connect):
    publish(connect("shop"), "x")
    assert "shop%tasks" in cluster.admin().topics()
    receiving = Receiving(connect("shop"), Queue("tasks"))
    assert receiving.until(1) == ["x"]
    receiving.messages[0].ack()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"priority_steps": [3, 6]}, "priority_steps=.* must have 0"),
        ({"visibility_timeout": 0.1}, r"visibility_timeout=0\.1 is out of range: 1 to 43200"),
        ({"visibility_timeout": "soon"}, "visibility_timeout='soon' is not a number"),
        ({"topic_queues": 0}, "topic_queues=0 is out of range"),
        ({"max_delay": -1}, "max_delay=-1 is out of range"),
        ({"visibility_timout": 3}, "has visibility_timout; it may have .*, visibility_timeout"),
    ],
)
def test_wrong_options_are_named(connect, options, text):
    with pytest.raises(UsageError, match=text):
        connect(**options)


@pytest.mark.parametrize(
    ("url", "ssl", "expected"),
    [
        ("rocketmq://a", None, ("a:9876", None)),
        ("rocketmq://[::1]:1", None, ("[::1]:1", None)),
        ("rocketmqs://a", None, ("a:9876", TlsConfig())),
        (
            "rocketmqs://a",
            {"ca_certs": "c.pem", "cert_reqs": ssl.CERT_NONE},
            ("a:9876", TlsConfig(authority="c.pem", verify=False)),
        ),
    ],
)
def test_urls_and_tls_options_are_understood(url, ssl, expected):
    found = RocketConnection(Connection(url, ssl=ssl))
    assert (found.namesrv, found.connections and found.connections.tls) == expected


def test_a_wrong_tls_option_is_named():
    with pytest.raises(UsageError, match="broker_use_ssl has cafile; it may have ca_certs"):
        RocketConnection(Connection("rocketmqs://a", ssl={"cafile": "c.pem"}))


def test_green_threads_are_refused(monkeypatch):
    monkeypatch.setattr("kombu.utils.compat._environment", "gevent")
    with pytest.raises(UsageError, match=r"does not work under gevent, .* --pool prefork, threads or solo"):
        importlib.reload(pyromq.celery)
