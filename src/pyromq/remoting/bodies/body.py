"""The base class of declared JSON bodies, and the bodies that several subjects share.

Wire names are the camelCase of the attributes unless `field(name=)` is given. Every member that a peer may omit has a
default. Source: RocketMQ 4.9.8, common.DataVersion, common.protocol.body.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

# Struct options that subclasses inherit, as for headers.
_DECLARATION: dict[str, Any] = {"frozen": True, "rename": "camel"}


class Body(msgspec.Struct, **_DECLARATION):
    """Base class of the declared JSON bodies of requests and responses."""


class DataVersion(Body):
    """The version of a broker's table, for example of its topics. Tables with equal versions are equal."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None  # sent by RocketMQ 5


class KeyValues(Body):
    """JSON body: texts by name."""

    table: dict[str, str] = field(default_factory=dict)


class TopicList(Body):
    """JSON body: topic names."""

    broker_address: str | None = field(name="brokerAddr", default=None)
    topics: list[str] = field(name="topicList", default_factory=list)


class GroupList(Body):
    """JSON body: group names."""

    groups: list[str] = field(name="groupList", default_factory=list)
