"""Scheduled messages and transactions.

Reminders are delivered when they are due, and one is cancelled. One transaction is committed, another one rolled back.
"""

from __future__ import annotations

import time

from pyromq import Admin, Decision, Message, PullConsumer, StoredMessage, TransactionProducer

TOPIC = "reminders"
REMINDERS = {"third": 2.0, "first": 1.0, "second": 1.5, "cancelled": 1.2}  # seconds until they are due
COMING = ["committed", "first", "second", "third"]
LAST_LOOK_SECONDS = 0.5  # after the last one was due: what must not come has had its time


def show(namesrv: str) -> list[str]:
    """Send them all and wait; return what came and what did not. Raises `RuntimeError` if that is not as it must be."""
    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
    began_ms = time.time_ns() // 1_000_000
    due_ms = {name: began_ms + int(seconds * 1000) for name, seconds in REMINDERS.items()}
    with TransactionProducer("demo-reminders", namesrv, check=lambda half: Decision.ROLLBACK) as producer:
        sent = {name: producer.send(Message(TOPIC, name.encode(), deliver_at=due_ms[name])) for name in due_ms}
        handle = sent["cancelled"].recall_handle
        assert handle is not None
        producer.cancel(handle)
        with producer.transaction(Message(TOPIC, b"committed")):
            pass  # here the application does what the message will speak of
        with producer.transaction(Message(TOPIC, b"rolled back")) as transaction:
            transaction.rollback()
        messages = read_until(namesrv, max(due_ms.values()) / 1000 + LAST_LOOK_SECONDS)
    return judged(messages, due_ms)


def read_until(namesrv: str, end: float) -> list[StoredMessage]:
    """Return what has come by a time (seconds since 1970), in order."""
    messages: list[StoredMessage] = []
    with PullConsumer("demo-reminded", namesrv) as consumer:
        queues = consumer.queues(TOPIC)
        consumer.assign(queues)
        consumer.seek_to_begin(queues[0])
        while (left := end - time.time()) > 0:
            messages += consumer.poll(timeout=left)
    return messages


def judged(messages: list[StoredMessage], due_ms: dict[str, int]) -> list[str]:
    names = [message.body.decode() for message in messages]
    if names != COMING:
        raise RuntimeError(f"{names} came, not {COMING}")
    late_ms = [message.store_ms - due_ms[name] for name, message in zip(names, messages, strict=True) if name in due_ms]
    if min(late_ms) < 0:
        raise RuntimeError(f"a reminder came {-min(late_ms)} ms early")
    return [
        f"reminders came when due (at most {max(late_ms)} ms late), the cancelled one never",
        "the committed message came, the one rolled back never",
    ]
