"""RocketMQ 5's client for Python: `ENDPOINTS COMMAND ARGUMENT...`. The commands are those of Java's GrpcDriver."""

import json
import os
import sys
import threading
import time
from collections import Counter

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

SECONDS = 100
INVISIBLE_SECONDS = 15

account = Credentials(os.environ.get("ACCESS_KEY", ""), os.environ.get("SECRET_KEY", ""))
configuration = ClientConfiguration(sys.argv[1], account, request_timeout=6)
printing = threading.Lock()


def write(value):
    with printing:
        print(json.dumps(value), flush=True)


def line(message):
    return {
        "topic": message.topic,
        "messageId": message.message_id,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "group": message.message_group,
        "attempt": message.delivery_attempt,
        "properties": dict(message.properties),
    }


def expression(wanted):
    is_sql = wanted.startswith("sql:")
    return FilterExpression(wanted.removeprefix("sql:"), FilterType.SQL if is_sql else FilterType.TAG)


def message_of(topic, kind):
    message = Message()
    message.topic, message.tag, message.body = topic, "paid", kind.encode()
    for key in ("k1", "k2"):
        message.keys = key  # each assignment adds a key
    message.add_property("amount", "7")
    match kind.split("-")[0]:
        case "fifo":
            message.message_group = "customer-3"
        case "delay" | "recall":
            message.delivery_timestamp = int(time.time()) + 3
        case "large":
            message.body = bytes(4 << 20)
    return message


class Checker(TransactionChecker):
    """Commits the transactions about which it is asked, and prints them."""

    def __init__(self):
        self.asked = threading.Event()

    def check(self, message):
        write(line(message))
        self.asked.set()
        return TransactionResolution.COMMIT


def send_one(producer, topic, kind):
    if kind in ("commit", "rollback"):
        transaction = producer.begin_transaction()
        receipt = producer.send(message_of(topic, kind), transaction)
        getattr(transaction, kind)()
        return receipt.message_id
    receipt = producer.send(message_of(topic, kind))
    if kind == "recall":
        return producer.recall_message(topic, receipt.recall_handle).message_id
    return receipt.message_id


def send(topic, *kinds):
    producer = Producer(configuration, (topic,), checker=Checker())
    producer.startup()
    for kind in kinds:
        try:
            write({"body": kind, "messageId": send_one(producer, topic, kind)})
        except Exception as error:  # noqa: BLE001  the client has no class of its own for a topic without a route
            write({"body": kind, "error": str(error)})
    producer.shutdown()


def orphan(topic):
    checker = Checker()
    producer = Producer(configuration, (topic,), checker=checker)
    producer.startup()
    producer.send(message_of(topic, "orphan"), producer.begin_transaction())
    assert checker.asked.wait(SECONDS), "the transaction was not checked"
    time.sleep(1)  # the decision is on its way
    producer.shutdown()


def simple(topic, group, wanted):
    consumer = SimpleConsumer(configuration, group, {topic: expression(wanted)}, await_duration=5)
    consumer.startup()
    return consumer


def receive(topic, group, wanted, count):
    consumer = simple(topic, group, wanted)
    left, end = int(count), time.monotonic() + SECONDS
    while left > 0 and time.monotonic() < end:
        for message in consumer.receive(left, INVISIBLE_SECONDS) or []:
            write(line(message))
            consumer.ack(message)
            left -= 1
    consumer.shutdown()


def one(consumer):
    for _ in range(12):
        if found := consumer.receive(1, INVISIBLE_SECONDS):
            write(line(found[0]))
            return found[0]
    raise AssertionError("no message came")


def again(topic, group):
    consumer = simple(topic, group, "*")
    consumer.change_invisible_duration(one(consumer), 1)
    consumer.ack(one(consumer))
    consumer.shutdown()


def abandon(topic, group):
    consumer = simple(topic, group, "*")
    consumer.ack(one(consumer))
    one(consumer)
    os._exit(0)


def push(topic, group, wanted, count, failures):
    left = threading.Semaphore(0)
    calls = Counter()  # the client does not count attempts that it makes in an orderly group

    class Listener(MessageListener):
        def consume(self, message):
            write(line(message))
            left.release()
            calls[message.message_id] += 1
            return ConsumeResult.SUCCESS if calls[message.message_id] > int(failures) else ConsumeResult.FAILURE

    consumer = PushConsumer(configuration, group, Listener(), {topic: expression(wanted)})
    consumer.startup()
    end = time.monotonic() + SECONDS
    for _ in range(int(count)):
        left.acquire(timeout=max(0, end - time.monotonic()))
    time.sleep(0.5)  # the last acknowledgement is on its way
    consumer.shutdown()


if __name__ == "__main__":
    commands = [send, orphan, receive, again, abandon, push]
    {each.__name__: each for each in commands}[sys.argv[2]](*sys.argv[3:])
    os._exit(0)  # the client leaves threads behind
