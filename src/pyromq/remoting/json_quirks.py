"""Reading what Java's fastjson writes and JSON does not allow, and writing maps whose keys are queues.

Not legal in JSON, yet on the wire: object keys that are numbers without quotes, object keys that are objects
(`{{"brokerName":"b","queueId":0,"topic":"t"}:7}`), and `{"$ref":"$.path"}` for an object that occurs twice.
Written back: `{MessageQueue: ...}` maps with object keys and no blanks, since Go takes such texts apart by searching.
Number keys are written with quotes: every client reads them, and so does any JSON reader.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from pyromq.errors import ProtocolError
from pyromq.message import MessageQueue

T = TypeVar("T")

MAX_DEPTH = 100  # of nested arrays and objects; real bodies have about six

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


def decode_body(body: type[T], raw: bytes) -> T:
    """Return the declared body that `raw` holds. Raises `ProtocolError` naming the body and what does not fit."""
    declared: Any = body  # mypy holds a class of unknown T to be unhashable
    if b'"$ref"' not in raw:
        try:
            return msgspec.json.decode(raw, type=body, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # not legal JSON, or a value of another type: the tolerant way finds out
    try:
        return msgspec.convert(_fitted(parse(raw), _shape(declared)), body, strict=False)
    except (msgspec.ValidationError, ProtocolError) as error:
        raise ProtocolError(f"{body.__name__}: {error}") from error


@cache
def _shape(body: type[Any]) -> inspect.Type:
    return inspect.type_info(body)


def _fitted(value: Any, shape: inspect.Type) -> Any:
    """Return `value` with texts where texts are declared and queues where queues are; as Java, whose reader casts."""
    if isinstance(shape, inspect.UnionType):
        return _fitted(value, _choice(value, shape))
    if isinstance(shape, inspect.StrType) and isinstance(value, bool | int | float):
        return _text(value)
    if isinstance(shape, inspect.DictType) and isinstance(value, dict):
        return {_fitted_key(k, shape.key_type): _fitted(item, shape.value_type) for k, item in value.items()}
    if isinstance(shape, inspect.ListType) and isinstance(value, list):
        return [_fitted(item, shape.item_type) for item in value]
    if isinstance(shape, inspect.StructType) and isinstance(value, dict):
        members = {f.encode_name: f.type for f in shape.fields}
        return {name: _fitted(item, members[name]) for name, item in value.items() if name in members}
    return value


def _choice(value: Any, union: inspect.UnionType) -> inspect.Type:
    """Return the only type beside None, or the one that fits a map or a list."""
    choices = [choice for choice in union.types if not isinstance(choice, inspect.NoneType)]
    wanted = inspect.ListType if isinstance(value, list) else inspect.DictType
    return next((choice for choice in choices if isinstance(choice, wanted)), choices[0])


def _fitted_key(key: Any, shape: inspect.Type) -> Any:
    """Java also takes a queue that is written as a text holding its JSON."""
    if isinstance(shape, inspect.NamedTupleType) and isinstance(key, str):
        return _as_queue(parse(key.encode()))
    return key


def encode_body(body: msgspec.Struct) -> bytes:
    """Return a body as JSON: no blanks, keys in alphabetical order, absent members left out."""
    parts: list[str] = []
    _write(body, parts)
    return "".join(parts).encode()


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, msgspec.Struct):
        members = [(key, getattr(value, attribute)) for key, attribute in _layout(type(value))]
        _write_members([member for member in members if member[1] is not None], parts)
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


@cache
def _layout(body: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Return wire name, as JSON, and attribute of each member, in the wire names' order."""
    return sorted((_text(f.encode_name), f.name) for f in msgspec.structs.fields(body))


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
    """A recursive-descent reader of one text."""

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
            return _as_queue(key)
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


def _as_queue(key: Any) -> MessageQueue:
    try:
        return MessageQueue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"]))
    except (KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"JSON body: the key {str(key)[:80]} is no queue") from error


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
