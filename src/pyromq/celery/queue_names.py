"""The topics of kombu's queues and exchanges. The names map to topics without loss, and back.

queue  celery                  celery
queue  high.prio               high%2Eprio       other characters than letters, digits, _ and -: UTF-8 as %XX
queue  celery, priority 6      celery%p6
exchange  celeryev             %xceleryev        messages to queues of single processes
"""

from __future__ import annotations

import re

from pyromq.errors import IllegalName
from pyromq.names import MAX_TOPIC_LENGTH

_PLAIN = re.compile(rb"[a-zA-Z0-9_-]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_PRIORITY = re.compile(r"(.*)%p(\d)\Z")
_EXCHANGE = "%x"


def queue_topic(queue: str, priority: int = 0) -> str:
    """Return the topic of a queue's messages of one priority. Raises `IllegalName` for a name that is too long."""
    topic = _escaped(queue) + (f"%p{priority}" if priority else "")
    if not queue or len(topic) > MAX_TOPIC_LENGTH:
        raise IllegalName(
            f"queue {queue!r} would be topic {topic!r}: a topic has 1 to {MAX_TOPIC_LENGTH} characters, and each"
            " character other than letters, digits, _ and - takes three; choose a shorter name"
        )
    return topic


def exchange_topic(exchange: str) -> str:
    """Return the topic of an exchange's messages to queues of single processes; "" is the default exchange."""
    topic = _EXCHANGE + _escaped(exchange)
    if len(topic) > MAX_TOPIC_LENGTH:
        raise IllegalName(f"exchange {exchange!r} would be topic {topic!r}, longer than {MAX_TOPIC_LENGTH} characters")
    return topic


def queue_of(topic: str) -> tuple[str, int]:
    """Return the queue and the priority of a topic made by `queue_topic`."""
    found = _PRIORITY.match(topic)
    name, priority = (found[1], int(found[2])) if found else (topic, 0)
    return _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), name.encode()).decode(), priority


def _escaped(name: str) -> str:
    characters = (bytes([each]) for each in name.encode())
    return "".join(each.decode() if _PLAIN.match(each) else f"%{each[0]:02X}" for each in characters)
