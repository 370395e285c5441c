"""Whether a message is one that is looked for: text anywhere in it, or an expression over properties and body."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from pyromq.errors import UndecodableBody
from pyromq.filter.sql import SqlFilter, check_sql
from pyromq.message import StoredMessage, encode_properties

Test = Callable[[StoredMessage], bool]

BODY = "body_"  # before the names of a JSON body's fields, in expressions
MOST_FIELDS = 200  # of one body
MOST_PARSED = 1 << 20  # bytes of a JSON body: parsing holds up all others, 16 MiB of it for a second
MOST_PATH = 1000  # characters of a field's name with those around it
SEPARATORS = re.compile("[\x01\x02]")

OF_AN_ID = re.compile(r"[0-9A-Fa-f]{32}([0-9A-Fa-f]{24})?\Z")
_LOG_OFFSET_BYTES = 8  # at the end of an id that says where a message lies


class TextMatch:
    """Text in body, properties, keys, tag or id, as it is written; upper and lower case differ."""

    def __init__(self, text: str) -> None:
        self._needle = text.encode()
        self._text = text
        self.words: tuple[bytes, ...] = (self._needle,)
        if OF_AN_ID.match(text):
            self.words += (text.upper().encode(), bytes.fromhex(text)[-_LOG_OFFSET_BYTES:])

    def accepts(self, message: StoredMessage) -> bool:
        try:
            body = message.body
        except UndecodableBody:
            body = message.stored_body
        return (
            self._needle in body
            or self._text in message.property_text
            or self._text.upper() in (message.message_id, message.offset_message_id)
        )


class SqlMatch:
    """An SQL92 expression; fields of a JSON body are `body_name`, and `body_item_sku` within another."""

    words = ()

    def __init__(self, expression: str) -> None:
        self.filter: SqlFilter = check_sql(expression)
        self.of_body = re.search(rf"\b{BODY}", expression) is not None

    def accepts(self, message: StoredMessage) -> bool:
        if not self.of_body:
            return self.filter.accepts_properties(message.property_text)
        try:
            body = message.body
            fields = _flat(msgspec.json.decode(body)) if len(body) <= MOST_PARSED else {}
        except (UndecodableBody, ValueError, RecursionError):  # no JSON, or nested without end
            fields = {}
        return self.filter.accepts_properties(encode_properties({**message.properties, **fields}))


def _flat(value: Any) -> dict[str, str]:
    """Return the plain values in a JSON value by their path."""
    found: dict[str, str] = {}
    left: list[tuple[str, Any]] = [(BODY[:-1], value)]
    while left and len(found) < MOST_FIELDS:
        path, each = left.pop()
        if len(path) > MOST_PATH:
            continue
        if isinstance(each, dict):
            left += [(f"{path}_{name}", inner) for name, inner in each.items()]
        elif isinstance(each, list):
            left += [(f"{path}_{number}", inner) for number, inner in enumerate(each[:20])]
        elif each is not None:
            text = str(each).lower() if isinstance(each, bool) else str(each)
            found[SEPARATORS.sub(" ", path)] = SEPARATORS.sub(" ", text)
    return found
