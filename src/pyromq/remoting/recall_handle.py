"""The handle with which a producer cancels a scheduled message.

URL-safe Base64 of five words: `v1 TOPIC BROKER DUE_MS UNIQUE_KEY`. Source: RocketMQ 5.3.3, RecallMessageHandle.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import b2a_base64
from typing import NamedTuple

from pyromq.errors import RecallRefused

_VERSION = "v1"
_WORDS = 5
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class RecallHandle(NamedTuple):
    """The content of a recall handle: topic, broker, delivery time (ms) and unique key of a scheduled message."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        return encode_handle(self.topic, self.broker_name, self.due_ms, self.unique_key).decode()


def encode_handle(topic: str, broker_name: str, due_ms: int, unique_key: str) -> bytes:
    """Return a recall handle as ASCII text. Called for every scheduled message."""
    words = f"{_VERSION} {topic} {broker_name} {due_ms} {unique_key}"
    text = b2a_base64(words.encode(), newline=False)
    # Only ">", "?", "~" and characters other than ASCII give "+" and "/"; legal names have none of these.
    return text if unique_key.isascii() and unique_key.isalnum() else text.translate(_URL_SAFE)


def decode_handle(text: str) -> RecallHandle:
    """Return the content of a recall handle. Raises `RecallRefused` if the handle is invalid."""
    try:
        # The last word, the unique key, may have spaces.
        words = urlsafe_b64decode(text.encode()).decode().split(" ", _WORDS - 1)
        version, topic, broker_name, due, unique_key = words
        if version == _VERSION and topic and unique_key and due.isascii() and due.isdecimal() and len(due) < 20:
            return RecallHandle(topic, broker_name, int(due), unique_key)
    except ValueError:  # the text is not Base64 or not UTF-8, or has too few words
        pass
    raise RecallRefused(f"recall handle is invalid: {text[:64]!r}; it comes with the result of a delayed send")


def is_recall_handle(text: str) -> bool:
    """Return whether a string is a recall handle."""
    try:
        decode_handle(text)
    except RecallRefused:
        return False
    return True
