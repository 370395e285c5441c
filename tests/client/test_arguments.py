"""Wrong types at the public surface: told at once, with argument, value, and what is allowed."""

import inspect
from datetime import datetime

import pytest

from pyromq import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncPullConsumer,
    Consumer,
    ConsumerConfig,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    TransactionProducer,
    UsageError,
)
from pyromq.client.arguments import checked

QUEUE = MessageQueue("arguments", "broker-a", 0)


def refused(argument, value, call, *arguments, **named):
    with pytest.raises(UsageError, match=rf"(^|one of ){argument}={value}.* is (\w+|no number); .*(must be|is a|need)"):
        call(*arguments, **named)


@pytest.mark.parametrize("kind", [Producer, PullConsumer, Consumer])
def test_clients_are_made_of_the_right_things(kind):
    config = ConsumerConfig if kind is not Producer else ProducerConfig
    refused("group", "5", kind, 5)
    refused("group", "None", kind, None)
    refused("namesrv", "9876", kind, "g", 9876)
    refused("namesrv", r"\['a:1'\]", kind, "g", ["a:1"])
    refused("config", "{'timeout': 1}", kind, "g", config={"timeout": 1})
    refused("config", "", kind, "g", config=config)


def test_so_are_admins_transaction_producers_and_settings():
    refused("timeout", "'5'", Admin, timeout="5")
    refused("namesrv", "9876", Admin, 9876)
    refused("group", "5", TransactionProducer, 5, check=print)
    refused("check", "'check'", TransactionProducer, "g", check="check")
    refused("timeout", "'3'", ProducerConfig, timeout="3")
    refused("timeout", "nan", ProducerConfig, timeout=float("nan"))
    refused("retries", "1.5", ProducerConfig, retries=1.5)
    refused("retry_codes", "17", ProducerConfig, retry_codes=17)
    refused("instance", "5", ProducerConfig, instance=5)
    refused("consume_from", "'first'", ConsumerConfig, consume_from="first")
    refused("orderly", "'yes'", ConsumerConfig, orderly="yes")
    refused("strategy", "'averaging'", ConsumerConfig, strategy="averaging")
    refused("offsets_folder", "'x'", ConsumerConfig, offsets_folder="x")


def test_a_producer_names_what_is_wrong(served):
    with Producer("p", served.namesrv) as producer:
        message = Message("arguments", b"1")
        for send in (producer.send, producer.send_soon, producer.request):
            refused("queue", "'arguments'", send, message, queue="arguments")
            refused("queue", r"\('arguments', 'b', 0\)", send, message, queue=("arguments", "b", 0))
            refused("queue", "MessageQueue", send, message, queue=MessageQueue("arguments", "broker-a", "0"))
            refused("selector", "'first'", send, message, selector="first")
            refused("ordering_key", "1.5", send, message, ordering_key=1.5)
            refused("timeout", "'3'", lambda *a, send=send, **n: wait(send(*a, **n)), message, timeout="3")
            for timeout in (0, -1.5, float("nan")):
                with pytest.raises(UsageError, match=f"timeout={timeout} leaves no time"):
                    wait(send(message, timeout=timeout))
        refused("topic", "5", producer.queues, 5)
        with pytest.raises(UsageError, match="cancel takes the recall_handle of a send result, not 5"):
            producer.cancel(5)
        assert producer._async.in_flight == 0


def wait(result):
    return result.result() if hasattr(result, "result") else result


def test_a_pull_consumer_names_what_is_wrong(served):
    with PullConsumer("g", served.namesrv) as consumer:
        refused("queues", "'orders'", consumer.assign, "orders")
        refused("queues", "MessageQueue", consumer.assign, QUEUE)
        refused("queues", r"\['orders'\]", consumer.assign, ["orders"])
        refused("queues", r"\('orders', 'b', 0\)", consumer.assign, iter([("orders", "b", 0)]))
        refused("tags", r"\['a'\]", consumer.assign, [QUEUE], tags=["a"])
        refused("topic", "5", consumer.subscribe, 5)
        refused("tags", "5", consumer.subscribe, "orders", tags=5)
        refused("listener", "5", consumer.watch_queues, "orders", 5)
        refused("listener", "5", consumer.subscribe, "orders", listener=5)
        refused("topic", "5", consumer.queues, 5)
        refused("queue", "'orders'", consumer.seek, "orders", 5)
        refused("offset", "'5'", consumer.seek, QUEUE, "5")
        refused("offset", "True", consumer.seek, QUEUE, True)
        refused("queue", "'orders'", consumer.seek_to_begin, "orders")
        refused("timestamp_ms", "datetime", consumer.seek_to_time, QUEUE, datetime(2026, 1, 31))
        refused("queues", "5", consumer.pause, 5)
        refused("timeout", "'1'", consumer.poll, "1")
        refused("offsets", "5", consumer.commit, 5)
        refused("offsets", "{Message", consumer.commit, {QUEUE: "5"})
        refused("queue", "5", consumer.committed, 5)
        refused("queue", "5", consumer.position, 5)
        refused("offset", "'0'", consumer.pull, QUEUE, "0")
        refused("max_count", "'0'", consumer.pull, QUEUE, 0, "0")
        refused("queue", "5", consumer.max_offset, 5)


def test_a_push_consumer_names_what_is_wrong():
    consumer = Consumer("g")
    refused("topic", "5", consumer.subscribe, 5, print)
    refused("listener", "'print'", consumer.subscribe, "orders", "print")
    refused("tags", r"\['a'\]", consumer.subscribe, "orders", print, tags=["a"])
    refused("topic", "5", consumer.unsubscribe, 5)


def test_an_admin_names_what_is_wrong(served):
    with Admin(served.namesrv) as admin:
        refused("name", "5", admin.create_topic, 5)
        refused("queues", "'8'", admin.create_topic, "arguments", "8")
        refused("read_queues", "1.5", admin.create_topic, "arguments", read_queues=1.5)
        refused("permission", "6", admin.create_topic, "arguments", permission=6)
        refused("order", "'yes'", admin.create_topic, "arguments", order="yes")
        for ask in (admin.delete_topic, admin.topic_route, admin.topic_status, admin.topic_config, admin.delete_group):
            refused("name", "None", ask, None)
        refused("config", "'g'", admin.create_group, "g")
        for ask in (admin.group_progress, admin.consumer_connection, admin.group_state):
            refused("group", "5", ask, 5)
        refused("timestamp_ms", "datetime", admin.reset_offset, "g", "arguments", datetime(2026, 1, 31))
        refused("queue", "'arguments'", admin.commit_offset, "g", "arguments", 5)
        refused("offset", "'5'", admin.commit_offset, "g", QUEUE, "5")
        refused("address", "10911", admin.broker_runtime, 10911)
        refused("older_than_hours", "'1'", admin.expire_log, "127.0.0.1:1", older_than_hours="1")
        refused("value", "5", admin.put_kv, "space", "key", 5)
        refused("message_id", "5", admin.view, 5)
        refused("max_count", "'1'", admin.query_by_key, "arguments", "k", "1")


@pytest.mark.parametrize("kind", [AsyncAdmin, AsyncConsumer, AsyncPullConsumer])
def test_checking_leaves_methods_what_they_are(kind):
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1:
            assert method.__wrapped__.__qualname__ == method.__qualname__
            assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(method.__wrapped__)


def test_too_many_arguments_are_pythons_own_error():
    class Client:
        @checked
        def ask(self, number: int) -> int:
            return number

    assert Client().ask(5) == 5
    for arguments in ((5, 6), ()):
        with pytest.raises(TypeError, match="ask"):
            Client().ask(*arguments)
    with pytest.raises(TypeError, match="unexpected keyword"):
        Client().ask(5, other=6)


async def test_async_clients_raise_when_awaited(cluster):
    admin, producer = await cluster.admin(), await cluster.producer()
    asked = admin.topic_route(5)
    with pytest.raises(UsageError, match="name=5 is int; it must be a string"):
        await asked
    with pytest.raises(UsageError, match="timeout='3' is str"):
        await producer.send(Message("orders", b"1"), timeout="3")


def test_subscribing_by_sql_is_hinted_at(caplog):
    Consumer("g").subscribe("orders", print, tags="price > 18")
    PullConsumer("g").subscribe("orders", tags="price > 19")
    assert ["price > 18" in caplog.messages[0], "price > 19" in caplog.messages[1]] == [True, True]
    assert "look like an SQL expression" in caplog.text
