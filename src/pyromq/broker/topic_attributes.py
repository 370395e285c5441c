"""Reads the changes of a topic's attributes in an administrator's request, and checks the values.

The broker knows one attribute, the type of a topic's messages. Only the gRPC proxy compares messages with the type, as
in RocketMQ 5. Source: RocketMQ 5.3.3, AttributeParser, AttributeUtil, TopicAttributes.
"""

from __future__ import annotations

from pyromq.errors import BrokerError
from pyromq.remoting.bodies import MESSAGE_TYPE, MESSAGE_TYPES, TopicConfig

MAX_TEXT = 1024  # limit of the characters of a request's changes: RocketMQ 5 has four attributes

_TYPES = frozenset(kind.upper() for kind in MESSAGE_TYPES)


def changed_attributes(known: TopicConfig | None, topic: str, text: str | None) -> dict[str, str]:
    """Return the attributes of a topic after the changes in `text`, for example `+message.type=FIFO,-other`.

    `known` is the topic before the request, None for a new one. Raises `BrokerError` for changes that are not possible.
    """
    attributes = dict(known.attributes or {}) if known is not None else {}
    if not text or text.isspace():
        return attributes
    if len(text) > MAX_TEXT:
        raise BrokerError(f"topic[{topic}]: its attributes have {len(text)} characters; the limit is {MAX_TEXT}")
    named = set()
    for change in text.split(","):
        sign, name, value = _parts(topic, change)
        if name in named:
            raise BrokerError(f"topic[{topic}]: attribute {name} is named twice in {text!r}; name it once")
        named.add(name)
        if sign == "+":
            _check_value(topic, name, value)
            attributes[name] = value.upper()
        elif attributes.pop(name, None) is None:
            raise BrokerError(f"topic[{topic}] has no attribute {name} to delete; leave out -{name}")
    return attributes


def _parts(topic: str, change: str) -> tuple[str, str, str]:
    """Return sign, name and value of one change. The value of a deleted attribute is empty."""
    sign, (name, equals, value) = change.strip()[:1], change.strip()[1:].partition("=")
    if sign not in ("+", "-") or not name or bool(equals) != (sign == "+"):
        raise BrokerError(f"topic[{topic}]: {change!r} is not a change of an attribute; write +NAME=VALUE or -NAME")
    return sign, name.strip(), value.strip()


def _check_value(topic: str, name: str, value: str) -> None:
    if name != MESSAGE_TYPE:
        raise BrokerError(f"topic[{topic}]: attribute {name!r} is not supported; pyromq has only {MESSAGE_TYPE}")
    if value.upper() not in _TYPES:
        raise BrokerError(f"topic[{topic}]: {name} is {value!r}; it must be one of {', '.join(sorted(_TYPES))}")
