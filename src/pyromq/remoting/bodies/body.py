"""The base of declared JSON bodies, and the bodies that several subjects share.

Wire names are the camelCase of the attributes unless `field(name=)` is given. Every member that a peer may omit has a
default. Source: RocketMQ 4.9.8, common.DataVersion, common.protocol.body.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

_DECLARATION: dict[str, Any] = {"frozen": True, "rename": "camel"}  # as for headers, inherited


class Body(msgspec.Struct, **_DECLARATION):
    """Base of the declared bodies."""


class DataVersion(Body):
    """The version of a table. Tables with equal versions are equal."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None  # RocketMQ 5


class KeyValues(Body):
    """Texts by name."""

    table: dict[str, str] = field(default_factory=dict)


class TopicList(Body):
    """Topic names."""

    broker_address: str | None = field(name="brokerAddr", default=None)
    topics: list[str] = field(name="topicList", default_factory=list)


class GroupList(Body):
    """Group names."""

    groups: list[str] = field(name="groupList", default_factory=list)
