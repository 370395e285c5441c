"""The messages that travel: every shape of body, tag, key and property that a difference could hide in."""

from __future__ import annotations

import random

from tests.interop.peers.clients import ORDER

from pyromq import Message


def samples(topic: str) -> list[Message]:
    noise = random.Random(7).randbytes
    return [
        Message(topic, b"plain"),
        Message(topic, b"tag and key", tags="TagA", keys="k1"),
        Message(topic, b"two keys", tags="TagB", keys=["k2", "k3"]),
        Message(topic, "Grüße, 世界 🚀".encode(), tags="标签", keys="schlüssel", properties={"größe": "naïve 🚀"}),
        Message(topic, bytes(range(256)), tags="TagA", keys="binary", flag=7),
        Message(topic, b"\0", keys="one-byte", flag=-1),
        Message(topic, b"properties", tags="TagC", properties={"a": "1", "b c": "x=y;z", "line": "one\ntwo"}),
        Message(topic, b"long property", properties={"long": "v" * 8000}),
        Message(topic, b"below " * 682 + b"abc", tags="TagZip", keys="edge-4095"),
        Message(topic, b"exact " * 682 + b"abcd", tags="TagZip", keys="edge-4096"),
        Message(topic, b"easily packed, " * 4000, tags="TagZip", keys="compressed"),
        Message(topic, noise(200_000), tags="TagNoise", keys="incompressible"),
    ]


def ordered_samples(topic: str, *, keys: int = 10, each: int = 20) -> list[Message]:
    """Messages of several keys, interleaved; the body holds key and number within the key."""
    return [
        Message(topic, f"key-{key} {number}".encode(), keys=f"key-{key}", properties={ORDER: f"key-{key}"})
        for number in range(each)
        for key in range(keys)
    ]


def messages_for(way: str, topic: str) -> list[Message]:
    return ordered_samples(topic) if way == "ordered" else samples(topic)
