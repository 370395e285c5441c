"""A web shop's messages: something of everything that the console shows."""

import json
import math
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

from tests.waiting import wait_until

from pyromq import (
    Admin,
    BatchTransactions,
    ConsumeFrom,
    Consumer,
    ConsumerConfig,
    Decision,
    GiveUp,
    Message,
    MessageTrace,
    Producer,
    ProducerConfig,
    TopicNotFound,
    TransactionProducer,
)

REASONS = ("no such customer: 4711", "no such customer: 4712", "the order was paid before", "amount is negative: -3.20")


def order(number):
    items = [{"sku": f"A{number}", "count": 1 + number % 3, "price": 9.9 + number}]
    return json.dumps({"order": number, "customer": 4700 + number, "items": items, "note": None}).encode()


@contextmanager
def open_shop(namesrv):
    """Fill the cluster and keep members of two groups online; group `billing` is behind and nobody of it is there."""
    with ExitStack() as open_for_now:
        admin = open_for_now.enter_context(Admin(namesrv))
        trace = MessageTrace(namesrv)
        open_for_now.callback(trace.close)
        config = ProducerConfig(hooks=(trace,))
        producer = open_for_now.enter_context(Producer("webshop", namesrv, config=config))
        for topic in ("orders", "payments", "invoices", "shipments", "reminders", "newsletters"):
            admin.create_topic(topic, 4)
        for member in members(namesrv, trace):
            open_for_now.enter_context(member)
        for number in range(40):
            producer.send(Message("orders", order(number), tags=f"t{number % 3}", keys=f"k{number}"))
            producer.send(Message("invoices", order(number), tags="web", keys=f"invoice-{number}"))
        for status in admin.topic_status("orders"):
            admin.commit_offset("billing", status.queue, status.max_offset // 2)
        leave_waiting(namesrv, producer)
        wait_until(lambda: dead(admin, "accounting") == len(REASONS))
        yield admin, producer


def members(namesrv, trace):
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, hooks=(trace,))
    warehouse = Consumer("warehouse", namesrv, config=config)
    warehouse.subscribe("payments", lambda _: None)
    accounting = Consumer("accounting", namesrv, config=config)

    @accounting.subscribe("invoices")
    def book(messages):
        number = messages[0].json()["order"]
        if number % 9 == 4:
            raise GiveUp(REASONS[number // 9 % len(REASONS)])
        if number == 7:
            raise ValueError("the tax service does not answer")

    return warehouse, accounting


def leave_waiting(namesrv, producer):
    """Leave messages that wait for their time, in levels, and for a decision."""
    now = int(time.time() * 1000)
    for number in range(60):
        due = now + 600_000 + number**2 * 60_000
        producer.send(Message("reminders", b"your parcel waits for you", keys=f"parcel-{number}", deliver_at=due))
    for number in range(12):
        message = Message("newsletters", b"what is new", keys=f"letter-{number}", delay_level=16 + number % 3)
        producer.send(message)
    with TransactionProducer("checkout", namesrv, check=lambda _: Decision.UNKNOWN) as checkout:
        for number in range(3):
            with checkout.transaction(Message("orders", order(90 + number), keys=f"cart-{number}")) as transaction:
                transaction.leave_open()
    with BatchTransactions("etl", namesrv) as batches:
        for name, tries in (("etl:2026-11-21", 2), ("etl:2026-11-22", 1)):
            for _ in range(tries):
                with batches.attempt(name) as attempt:
                    attempt.send([Message("shipments", order(number)) for number in range(25)])


def dead(admin, group):
    with suppress(TopicNotFound):
        return sum(each.max_offset - each.min_offset for each in admin.topic_status(f"%DLQ%{group}"))
    return 0


@contextmanager
def trade(producer):
    """Let customers pay, now more, now fewer of them, while this is open."""
    is_over = threading.Event()

    def pay():
        number = 0
        while not is_over.wait(0.05):
            for _ in range(3 + round(2 * math.sin(time.monotonic() / 15))):
                producer.send(Message("payments", order(number), keys=f"payment-{number}"))
                number += 1

    till = threading.Thread(target=pay)
    till.start()
    try:
        yield
    finally:
        is_over.set()
        till.join()
