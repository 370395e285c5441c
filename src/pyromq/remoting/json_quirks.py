"""Reading what Java's fastjson writes and JSON does not allow, and writing maps whose keys are queues.

Not legal in JSON, yet on the wire: object keys that are numbers without quotes, object keys that are objects
(`{{"brokerName":"b","queueId":0,"topic":"t"}:7}`), and `{"$ref":"$.path"}` for an object that occurs twice.
Written back: `{MessageQueue: ...}` maps with object keys and no blanks, since Go takes such texts apart by searching.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from pyromq.errors import ProtocolError
from pyromq.message import MessageQueue

T = TypeVar("T")

MAX_DEPTH = 100  # of nested arrays and objects; real bodies have about six

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


def decode_body(body: type[T], raw: bytes) -> T:
    """Return the declared body that `raw` holds. Raises `ProtocolError` naming the body and what does not fit."""
    if b'"$ref"' not in raw:
        try:
            return msgspec.json.decode(raw, type=body, strict=False)
        except msgspec.DecodeError:
            pass  # not legal JSON, or a value of another type: the tolerant way finds out
    try:
        return msgspec.convert(parse(raw), body, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{body.__name__}: {error}") from error


def encode_body(body: msgspec.Struct) -> bytes:
    """Return a body as JSON: no blanks, keys in alphabetical order, absent members left out."""
    parts: list[str] = []
    _write(body, parts)
    return "".join(parts).encode()


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, msgspec.Struct):
        members = [(f.encode_name, getattr(value, f.name)) for f in msgspec.structs.fields(value)]
        _write_members([(_text(name), v) for name, v in sorted(members, key=_first) if v is not None], parts)
    elif isinstance(value, MessageQueue):
        _write_members([(_text(name), v) for name, v in _queue_members(value)], parts)
    elif isinstance(value, dict):
        _write_members([(_key(key), v) for key, v in value.items() if v is not None], parts)
    elif isinstance(value, list | tuple | set | frozenset):
        parts.append("[")
        for number, item in enumerate(value):
            if number:
                parts.append(",")
            _write(item, parts)
        parts.append("]")
    else:
        parts.append(_text(value))


def _write_members(members: list[tuple[str, Any]], parts: list[str]) -> None:
    parts.append("{")
    for number, (key, value) in enumerate(members):
        parts.append(f",{key}:" if number else f"{key}:")
        _write(value, parts)
    parts.append("}")


def _first(member: tuple[str, Any]) -> str:
    return member[0]


def _key(key: Any) -> str:
    if isinstance(key, MessageQueue):
        parts: list[str] = []
        _write(key, parts)
        return "".join(parts)
    return _text(str(key))


def _queue_members(queue: MessageQueue) -> list[tuple[str, str | int]]:
    return [("brokerName", queue.broker_name), ("queueId", queue.queue_id), ("topic", queue.topic)]


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def parse(raw: bytes) -> Any:
    """Return Python values of a text in fastjson's dialect; queues as keys become `MessageQueue`, nulls vanish.

    Raises `ProtocolError` with the position of what cannot be read.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"JSON body is not UTF-8: {error}") from error
    parser = _Parser(text)
    value = parser.value(0)
    parser.end()
    return _resolve(value, value, []) if '"$ref"' in text else value


class _Parser:
    """A recursive-descent reader; `position` is where it stands."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self._fail("nested too deeply")
        character = self._next()
        if character == "{":
            return self._object(depth)
        if character == "[":
            return self._array(depth)
        if character == '"':
            return self._string()
        if match := _NUMBER.match(self._text, self._position):
            self._position = match.end()
            return float(match[0]) if match[1] or match[2] else self._integer(match[0])
        for word, meaning in _WORDS.items():
            if self._text.startswith(word, self._position):
                self._position += len(word)
                return meaning
        return self._fail("no value")

    def end(self) -> None:
        if self._next():
            self._fail("more text after the value")

    def _next(self) -> str:
        space = _SPACE.match(self._text, self._position)
        assert space is not None, "the pattern also matches nothing"
        self._position = space.end()
        return self._text[self._position : self._position + 1]

    def _object(self, depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        self._position += 1
        while self._next() != "}":
            key = self._member_key(self.value(depth + 1))
            if self._next() != ":":
                self._fail("no `:` after a key")
            self._position += 1
            value = self.value(depth + 1)
            if value is not None:
                members[key] = value
            self._separator("}")
        self._position += 1
        return members

    def _array(self, depth: int) -> list[Any]:
        items = []
        self._position += 1
        while self._next() != "]":
            items.append(self.value(depth + 1))
            self._separator("]")
        self._position += 1
        return items

    def _separator(self, closing: str) -> None:
        character = self._next()
        if character == ",":
            self._position += 1
        elif character != closing:
            self._fail(f"neither `,` nor `{closing}`")

    def _member_key(self, key: Any) -> str | MessageQueue:
        if isinstance(key, dict):
            try:
                return MessageQueue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"]))
            except (KeyError, ValueError, TypeError):
                self._fail("an object that is no queue as a key")
        if isinstance(key, list) or key is None:
            self._fail("a key that is neither text, number nor queue")
        return key if isinstance(key, str) else str(key)

    def _string(self) -> str:
        match = _STRING.match(self._text, self._position)
        if match is None:
            raise self._error("a text without end")
        self._position = match.end()
        try:
            return msgspec.json.decode(match[0], type=str)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"JSON body, character {match.start()}: {error}") from error

    def _integer(self, digits: str) -> int:
        if len(digits) > 20:
            self._fail("a number of more than 64 bits")
        return int(digits)

    def _fail(self, what: str) -> Any:
        raise self._error(what)

    def _error(self, what: str) -> ProtocolError:
        near = self._text[self._position : self._position + 20]
        return ProtocolError(f"JSON body, character {self._position} ({near!r}): {what}")


def _resolve(value: Any, root: Any, parents: list[Any]) -> Any:
    """Replace references by what they mean: `$.a.b[0]` from the root, `@` the object itself, `..` its parent."""
    if isinstance(value, dict):
        if set(value) == {"$ref"}:
            return _follow(str(value["$ref"]), root, parents)
        return {key: _resolve(item, root, [*parents, value]) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, root, [*parents, value]) for item in value]
    return value


def _follow(path: str, root: Any, parents: list[Any]) -> Any:
    if path == "$":
        return root
    if path == "@":
        return parents[-1] if parents else root
    if path == "..":
        return parents[-2] if len(parents) > 1 else root
    found = root
    try:
        for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
            found = found[name] if name else found[int(index)]
    except (KeyError, IndexError, TypeError) as error:
        raise ProtocolError(f"JSON body: reference {path!r} leads nowhere") from error
    return found
