"""Namespaces: applications with equal names side by side. Topic `orders` of namespace `shop` is `shop%orders`.

Only clients know namespaces: they wrap names in requests and unwrap names in responses. Inside a client, topics have
the application's names; groups are wrapped once, when the client is made. Source: RocketMQ 4.9.8, NamespaceUtil,
ClientConfig.
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

# Finds the name of a cloud instance in its name servers' address, for example http://MQ_INST_1_x.example.com:80.
_INSTANCE = re.compile(r"(\w+://|)(MQ_INST_\w+_\w+)\..*", re.ASCII)
_LEGAL = re.compile(r"[a-zA-Z0-9|_-]+")


class Namespace:
    """Adds a namespace to names of topics and groups (wraps) and removes it (unwraps).

    `name` is "" for no namespace. Wrapping a wrapped name does not change it.
    """

    def __init__(self, name: str) -> None:
        if name and not _LEGAL.fullmatch(name):
            raise IllegalName(f"namespace {name!r} contains illegal characters; letters, digits, | _ and - are allowed")
        self.name = name
        self._begin = name + SEPARATOR
        self.properties = {Property.INSTANCE_ID: name} if name else {}  # added to the properties of sent messages

    def wrap(self, name: str) -> str:
        """Return the brokers' name of a topic or group, with the namespace; `%RETRY%` and `%DLQ%` stay in front of it.

        Names of system topics and groups do not change.
        """
        is_system = is_system_topic(name) or name.endswith(REPLY_SUFFIX) or name.startswith(SYSTEM_GROUP_PREFIX)
        if not self.name or is_system:
            return name
        kind, plain = _parts(name)
        return name if plain.startswith(self._begin) else kind + self._begin + plain

    def unwrap(self, name: str) -> str:
        """Return the application's name of a topic or group; names outside the namespace do not change."""
        if not self.name:
            return name
        kind, plain = _parts(name)
        return kind + plain.removeprefix(self._begin)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.wrap(queue.topic)) if self.name else queue

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.unwrap(queue.topic)) if self.name else queue

    def checked_topic(self, topic: str) -> str:
        """Return the application's name of a topic. Raises `IllegalName` for a name that brokers would refuse."""
        check_topic(topic)
        check_topic(self.wrap(topic))
        return self.unwrap(topic)

    def checked_group(self, group: str) -> str:
        """Return the brokers' name of a group. Raises `IllegalName` for a name that brokers would refuse."""
        check_group(group)
        check_group(self.wrap(group))
        return self.wrap(group)


def namespace_of(namespace: str | None, namesrv: str | None) -> Namespace:
    """Return a client's `namespace`; if None, that of the environment, else that in the name servers' address."""
    if namespace is None:
        namespace = os.environ.get(VARIABLE, "").strip() or _in_address(namesrv)
    elif not isinstance(namespace, str):
        raise UsageError(f"namespace={namespace!r:.80} is {type(namespace).__name__}; it must be a string")
    return Namespace(namespace)


NO_NAMESPACE = Namespace("")


def _in_address(namesrv: str | None) -> str:
    address = default_namesrv() if namesrv is None else namesrv
    found = _INSTANCE.fullmatch(address) if isinstance(address, str) else None
    return found[2] if found else ""


def _parts(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic ("" for other names) and the rest of the name."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
