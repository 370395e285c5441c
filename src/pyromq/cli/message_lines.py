"""Lines as messages, for `pyromq send`: a body, `key:value`, or an object as `pyromq consume -o json` prints it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from pyromq.errors import UnfitBody
from pyromq.excerpt import excerpt
from pyromq.json_body import encode_json
from pyromq.message import RESERVED_PROPERTIES, Message

LINES, KEY_VALUE, JSON = "lines", "key:value", "json"
INPUTS = (LINES, KEY_VALUE, JSON)


class MessageLine(msgspec.Struct):
    """What counts of an object; a body that is no text is sent as JSON."""

    body: Any = msgspec.UNSET
    body_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    tags: str | None = None
    keys: list[str] | str = []
    properties: dict[str, str] = {}

    def __post_init__(self) -> None:
        if (self.body is msgspec.UNSET) == (self.body_base64 is msgspec.UNSET):
            raise ValueError("give one of `body` and `body_base64`")


_decode = msgspec.json.Decoder(MessageLine).decode


def line_reader(kind: str, template: Message) -> Callable[[bytes], Message]:
    """Return what makes a message of a line; what the line does not say is as in the template.

    Raises `UnfitBody` for a line that is not of the kind.
    """
    return {LINES: _of_body, KEY_VALUE: _of_pair, JSON: _of_object}[kind](template)


def _of_body(template: Message) -> Callable[[bytes], Message]:
    return lambda line: replace(template, body=line, properties=dict(template.properties))


def _of_pair(template: Message) -> Callable[[bytes], Message]:
    def read(line: bytes) -> Message:
        key, separator, value = line.partition(b":")
        if not separator:
            raise UnfitBody(f"{line[:100]!r} is not of the form key:value")
        keys = [*template.keys, *key.decode(errors="replace").split()]
        return replace(template, body=value, keys=keys, properties=dict(template.properties))

    return read


def _of_object(template: Message) -> Callable[[bytes], Message]:
    def read(line: bytes) -> Message:
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UnfitBody(
                f"no message in JSON, as `pyromq consume -o json` prints it: {excerpt(str(error))}"
            ) from error
        body = found.body_base64 if isinstance(found.body_base64, bytes) else found.body
        keys = found.keys.split() if isinstance(found.keys, str) else found.keys
        own = {name: value for name, value in found.properties.items() if name not in RESERVED_PROPERTIES}
        return replace(
            template,
            body=body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else encode_json(body),
            tags=found.tags or template.tags,
            keys=[*template.keys, *keys],
            properties=template.properties | own,
        )

    return read
