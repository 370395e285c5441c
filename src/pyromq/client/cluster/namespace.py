"""Namespaces: applications with the same names beside each other, as brokers see `shop%orders` where one says `orders`.

Brokers and name servers know nothing of them: clients write names so in whatever they ask, and read them so in whatever
they are told. Inside a client stand the application's names; who makes a request wraps. Groups are the exception: they
are wrapped once, when the client is made. Source: RocketMQ 4.9.8, NamespaceUtil, ClientConfig.
"""

from __future__ import annotations

import os
import re

from pyromq.client.cluster.name_servers import default_namesrv
from pyromq.errors import IllegalName, UsageError
from pyromq.message import MessageQueue, Property
from pyromq.names import (
    DEAD_LETTER_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    check_group,
    check_topic,
    is_system_topic,
)

VARIABLE = "PYROMQ_NAMESPACE"
SEPARATOR = "%"

# The name of an instance, as some clouds have it in its name servers' address: http://MQ_INST_1_x.example.com:80.
_INSTANCE = re.compile(r"(\w+://|)(MQ_INST_\w+_\w+)\..*", re.ASCII)
_LEGAL = re.compile(r"[a-zA-Z0-9|_-]+")


class Namespace:
    """Wraps and unwraps names; `name` is "" where nothing is to be done. Both do nothing the second time."""

    def __init__(self, name: str) -> None:
        if name and not _LEGAL.fullmatch(name):
            raise IllegalName(f"namespace {name!r} contains illegal characters; letters, digits, | _ and - are allowed")
        self.name = name
        self._begin = name + SEPARATOR
        self.properties = {Property.INSTANCE_ID: name} if name else {}  # what messages sent carry

    def wrap(self, name: str) -> str:
        """Return what brokers call a topic or group: `%RETRY%` and `%DLQ%` stay in front, system names as they are."""
        is_system = is_system_topic(name) or name.endswith(REPLY_SUFFIX) or name.startswith(SYSTEM_GROUP_PREFIX)
        if not self.name or is_system:
            return name
        kind, plain = _parts(name)
        return name if plain.startswith(self._begin) else kind + self._begin + plain

    def unwrap(self, name: str) -> str:
        """Return what the application calls it; the names of others stay as they are."""
        if not self.name:
            return name
        kind, plain = _parts(name)
        return kind + plain.removeprefix(self._begin)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.wrap(queue.topic)) if self.name else queue

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.unwrap(queue.topic)) if self.name else queue

    def checked_topic(self, topic: str) -> str:
        """Return the application's name of a topic. Raises `IllegalName` for one that brokers would refuse."""
        check_topic(topic)
        check_topic(self.wrap(topic))
        return self.unwrap(topic)

    def checked_group(self, group: str) -> str:
        """Return brokers' name of a group. Raises `IllegalName` for one that they would refuse."""
        check_group(group)
        check_group(self.wrap(group))
        return self.wrap(group)


def namespace_of(namespace: str | None, namesrv: str | None) -> Namespace:
    """Return the namespace that a client was given, else that of the environment, else of the name servers' address."""
    if namespace is None:
        namespace = os.environ.get(VARIABLE, "").strip() or _in_address(namesrv)
    elif not isinstance(namespace, str):
        raise UsageError(f"namespace={namespace!r:.80} is {type(namespace).__name__}; it is a text")
    return Namespace(namespace)


NO_NAMESPACE = Namespace("")


def _in_address(namesrv: str | None) -> str:
    address = default_namesrv() if namesrv is None else namesrv
    found = _INSTANCE.fullmatch(address) if isinstance(address, str) else None
    return found[2] if found else ""


def _parts(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, "" for others, and the rest."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
