"""Decodes and encodes JSON bodies as declared structs, compatible with Java's fastjson.

Decoding tries msgspec first, then a parser of fastjson's dialect, within the caller's bounds. In that dialect, object
keys may be numbers without quotes, or objects (`{{"brokerName":"b","queueId":0,"topic":"t"}:7}`). `{"$ref":"$.path"}`
stands for an object that occurs again. The input is untrusted: each character is read once, referenced objects are
shared instead of copied, and depth, bytes and values are limited.

`{MessageQueue: ...}` maps are encoded with objects as keys and without blanks, because Go clients search such strings.
Number keys have quotes: all clients and any JSON parser accept them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from pyromq.errors import ProtocolError
from pyromq.excerpt import excerpt
from pyromq.message import MessageQueue

T = TypeVar("T")

_MAX_KEY_BYTES = 1 << 10  # limit of a queue as a string (two names and a number)
_PART = 1_000  # limit of members of a list or map that are encoded in one step, in about 50 us
_SORTED = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for decoding a JSON body, which are checked before time and memory are spent.

    Tolerant decoding is for strings that are not plain JSON, or have a value of another type than declared. Tolerant
    decoding takes about 2 us per value, 50 times as long as msgspec.
    """

    plain_bytes: int  # limit of a body decoded by msgspec: 1 MiB takes up to 5 ms
    odd_bytes: int  # limit of a body that is decoded tolerantly
    odd_values: int  # limit of numbers, strings, lists and objects in such a body; each reference counts


# Requests to a server: decoding blocks the event loop, for 10 ms at most. The largest normal requests are heartbeats of
# clients with 1,000 subscriptions (150 kB of plain JSON); 250 subscriptions have 4,096 values.
REQUEST = Bounds(plain_bytes=1 << 20, odd_bytes=1 << 18, odd_values=1 << 12)
# A large Spark job commits 10,000 attempts of 130 bytes in one request.
ATTEMPTS = replace(REQUEST, plain_bytes=1 << 22)
# A broker registers all its topics, 150 bytes each, in one frame.
REGISTRATION = replace(REQUEST, plain_bytes=1 << 24)
# Responses, which a client waits for: tables as large as a frame. 90,000 queues have a million values.
ANSWER = Bounds(plain_bytes=1 << 24, odd_bytes=1 << 24, odd_values=1_000_000)
# Files on the server's own disk.
FILE = Bounds(plain_bytes=sys.maxsize, odd_bytes=sys.maxsize, odd_values=sys.maxsize)


def decode_body(body: type[T], raw: bytes, bounds: Bounds = ANSWER) -> T:
    """Return the value of a declared JSON body in `raw`.

    Raises `ProtocolError` that names the body and the member that does not fit, or the limit that the body exceeds.
    """
    declared: Any = body  # mypy takes a class of unknown T as unhashable
    if len(raw) > bounds.plain_bytes:
        raise ProtocolError(f"{body.__name__}: {len(raw)} bytes; the limit is {bounds.plain_bytes}")
    if b'"$ref"' not in raw:
        try:
            return msgspec.json.decode(raw, type=body, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # invalid JSON, or a value of another type: decoded tolerantly below
    try:
        value = parse(raw, max_bytes=bounds.odd_bytes, max_values=bounds.odd_values)
        return msgspec.convert(_Fitting(bounds.odd_values).fitted(value, _shape(declared)), body, strict=False)
    except (msgspec.ValidationError, ProtocolError) as error:
        raise ProtocolError(f"{body.__name__}: {excerpt(error)}") from error


@cache
def _shape(body: type[Any]) -> inspect.Type:
    return inspect.type_info(body)


@cache
def _members_by_name(struct: type[Any]) -> dict[str, inspect.Type]:
    return {member.encode_name: member.type for member in _members(struct)}


class _Fitting:
    """Converts values to the declared types as Java's reader does, for example numbers to strings, objects to queues.

    Objects shared by references are copied here, so their values are counted again.
    """

    def __init__(self, max_values: int) -> None:
        self._most = max_values
        self._values = 0

    def fitted(self, value: Any, shape: inspect.Type) -> Any:
        """Return a JSON value converted to a declared type (`shape`), without members that are not declared."""
        self._values += 1
        if self._values > self._most:
            raise ProtocolError(f"JSON body: it has more than {self._most} values, as its references repeat values")
        if isinstance(shape, inspect.UnionType):
            shape = _choice(value, shape)
        if isinstance(shape, inspect.StrType) and isinstance(value, bool | int | float):
            return _text(value)
        if isinstance(shape, inspect.DictType) and isinstance(value, dict):
            return {
                self._fitted_key(k, shape.key_type): self.fitted(item, shape.value_type) for k, item in value.items()
            }
        if isinstance(shape, inspect.ListType) and isinstance(value, list):
            return [self.fitted(item, shape.item_type) for item in value]
        if isinstance(shape, inspect.StructType) and isinstance(value, dict):
            members = _members_by_name(shape.cls)
            return {name: self.fitted(item, members[name]) for name, item in value.items() if name in members}
        return value

    def _fitted_key(self, key: Any, shape: inspect.Type) -> Any:
        """Return a key converted to its declared type.

        Java also accepts a queue as a string with the JSON of the queue.
        """
        if isinstance(shape, inspect.NamedTupleType) and isinstance(key, str):
            return as_queue(parse(key.encode(), max_bytes=_MAX_KEY_BYTES))
        return key


def _choice(value: Any, union: inspect.UnionType) -> inspect.Type:
    """Return the only type other than None in a union, or the type that fits a map or a list."""
    choices = [choice for choice in union.types if not isinstance(choice, inspect.NoneType)]
    wanted = inspect.ListType if isinstance(value, list) else inspect.DictType
    return next((choice for choice in choices if isinstance(choice, wanted)), choices[0])


def encode_body(body: msgspec.Struct) -> bytes:
    """Return a body as JSON without blanks, with sorted keys, without absent members."""
    return "".join(body_pieces(body)).encode()


def body_pieces(value: Any) -> Iterator[str]:
    """Yield the JSON text of a body in pieces, so that encoding a large body need not block the event loop.

    A struct declared without optional members and queues is a single piece, which msgspec encodes 40 times as fast.
    """
    if isinstance(value, msgspec.Struct):
        if _is_flat(type(value)) and all(len(getattr(value, name)) <= _PART for name in _lists(type(value))):
            yield _SORTED.encode(value).decode()
        else:
            members = ((key, getattr(value, attribute), plain) for key, attribute, plain in _layout(type(value)))
            yield from _object_pieces(member for member in members if member[1] not in (None, msgspec.UNSET))
    elif isinstance(value, MessageQueue):
        yield _queue_text(value)
    elif isinstance(value, dict):
        yield from _object_pieces((_key(key), item, False) for key, item in value.items() if item is not None)
    elif isinstance(value, list | tuple | set | frozenset):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ","
            yield from body_pieces(item)
        yield "]"
    else:
        yield _text(value)


def _object_pieces(members: Iterable[tuple[str, Any, bool]]) -> Iterator[str]:
    """Yield an object of `(key, value, is_plain)` members."""
    yield "{"
    for number, (key, value, plain) in enumerate(members):
        yield f",{key}:" if number else f"{key}:"
        if plain:
            yield from _plain_pieces(value)
        else:
            yield from body_pieces(value)
    yield "}"


def _plain_pieces(value: Any) -> Iterator[str]:
    """Yield the JSON text of a value as msgspec does, long lists and maps in several pieces."""
    if not isinstance(value, list | dict) or len(value) <= _PART:
        yield _text(value)
        return
    parts: Iterator[Any] = iter(value) if isinstance(value, list) else iter(value.items())
    yield "[" if isinstance(value, list) else "{"
    for number in range(0, len(value), _PART):
        part = list(islice(parts, _PART)) if isinstance(value, list) else dict(islice(parts, _PART))
        yield ("," if number else "") + _text(part)[1:-1]
    yield "]" if isinstance(value, list) else "}"


@cache
def _is_flat(body: type[msgspec.Struct]) -> bool:
    """Return whether msgspec with sorted members gives the same JSON text for this type.

    Members that may be unset do not count: msgspec omits them, and the order of the map among them does not matter.
    """
    shapes = [member.type for member in _members(body) if member.default is not msgspec.UNSET]
    return all(_is_plain(shape) and not isinstance(shape, inspect.DictType) for shape in shapes)


@cache
def _lists(body: type[msgspec.Struct]) -> list[str]:
    """Return the names of the members of a struct that are lists."""
    return [member.name for member in _members(body) if isinstance(member.type, inspect.ListType)]


@cache
def _layout(body: type[msgspec.Struct]) -> list[tuple[str, str, bool]]:
    """Return `(wire name as JSON, attribute, is_plain)` of each member of a struct, sorted by wire name."""
    return sorted((_text(member.encode_name), member.name, _is_plain(member.type)) for member in _members(body))


def _members(body: type[msgspec.Struct]) -> Sequence[inspect.Field]:
    shape = inspect.type_info(body)
    assert isinstance(shape, inspect.StructType)
    return shape.fields


def _is_plain(shape: inspect.Type) -> bool:
    """Return whether msgspec gives the same JSON text for this type: plain values, lists and maps of such values."""
    if isinstance(shape, inspect.ListType):
        return _is_plain(shape.item_type)
    if isinstance(shape, inspect.DictType):
        return isinstance(shape.key_type, inspect.StrType | inspect.IntType) and _is_plain(shape.value_type)
    return isinstance(shape, inspect.BoolType | inspect.IntType | inspect.FloatType | inspect.StrType)


def _key(key: Any) -> str:
    return _queue_text(key) if isinstance(key, MessageQueue) else _text(str(key))


def _queue_text(queue: MessageQueue) -> str:
    broker, topic = _text(queue.broker_name), _text(queue.topic)
    return f'{{"brokerName":{broker},"queueId":{queue.queue_id},"topic":{topic}}}'


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


MAX_DEPTH = 100  # limit of nested arrays and objects; real bodies have about six levels

_MAX_DIGITS = 20  # limit of characters of a whole number: 64 bits with a sign
_MAX_NUMBER = 64  # limit of characters of any other number; a double has at most 25
# Blanks, then the beginning of a value. Quantifiers are possessive: backtracking in a text of 16 MB would need 1 GB.
_VALUE = re.compile(
    r"""[ \t\r\n]*+(?:
    ("[^"\\]*+ (?:\\.[^"\\]*+)*+")
    | (-?[0-9]++ (?:\.[0-9]++)?+ (?:[eE][-+]?[0-9]++)?+)
    | ([{\[])
    | (true|false|null))""",
    re.DOTALL | re.VERBOSE,
)
_TEXT, _NUMBER, _OPENING = 1, 2, 3  # groups of this expression; the last group is a word
_MARK = re.compile(r"[ \t\r\n]*+([^ \t\r\n]?)")
_WORDS = {"true": True, "false": False, "null": None}
_STEP = re.compile(r"\.([^.\[]++)|\[([0-9]{1,9})\]")


def parse(raw: bytes, *, max_bytes: int = sys.maxsize, max_values: int = sys.maxsize) -> Any:
    """Return the Python values of a string in the dialect of Java's fastjson.

    Queues as keys become `MessageQueue`; nulls are dropped. A reference becomes the object itself, which may be cyclic.
    Raises `ProtocolError` with the position of a fault, or if the number of bytes or values (including keys) exceeds
    its limit.
    """
    if len(raw) > max_bytes:
        raise ProtocolError(f"JSON body of {len(raw)} bytes is not plain JSON; the limit of such is {max_bytes}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"JSON body is not UTF-8: {error}") from error
    reader = _Reader(text, max_values)
    value = reader.value(0)
    reader.end()
    reader.resolve(value)
    return value


def as_queue(key: Any) -> MessageQueue:
    """Convert a JSON object to a `MessageQueue`. Raises `ProtocolError` for another object."""
    try:
        return MessageQueue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"]))
    except (KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"JSON body: the key {str(key)[:80]} is not a queue") from error


class _Reader:
    """A recursive-descent parser of one string in fastjson's dialect."""

    def __init__(self, text: str, max_values: int) -> None:
        self._text = text
        self._position = 0
        self._most = max_values
        self._values = 0
        self._open: list[Any] = []  # the enclosing objects and lists
        self._references: list[tuple[Any, Any, dict[Any, Any], Any]] = []  # holder, key, reference, its parent

    def value(self, depth: int) -> Any:
        """Parse a value with all its members, and return the value."""
        self._count()
        found = _VALUE.match(self._text, self._position)
        if found is None:
            self._fail("a string without end" if self._mark() == '"' else "no value")
        kind = found.lastindex
        if kind == _OPENING:
            if depth == MAX_DEPTH:
                self._fail("nested too deeply")
            self._position = found.end()
            return self._object(depth + 1) if found[kind] == "{" else self._array(depth + 1)
        if kind == _TEXT:
            value: Any = self._decoded(found[kind])
        else:
            value = self._number(found[kind]) if kind == _NUMBER else _WORDS[found[0].lstrip()]
        self._position = found.end()
        return value

    def end(self) -> None:
        """Raise `ProtocolError` if text follows the parsed value."""
        if self._mark():
            self._fail("more text after the value")

    def resolve(self, root: Any) -> None:
        """Replace references by their objects.

        `$.a.b[0]` is a path from the root, `@` the holder, `..` the parent of the holder. Each step of a reference
        counts as a value.
        """
        for holder, key, reference, parent in self._references:
            if holder[key] is reference:  # false if a later member with the same name replaced the reference
                path = str(reference["$ref"])
                holder[key] = holder if path == "@" else parent if path == ".." else self._follow(path, root)

    def _follow(self, path: str, root: Any) -> Any:
        found = root
        try:
            if not path.startswith("$"):
                raise KeyError(path)
            for step in _STEP.finditer(path):
                self._count()
                found = found[step[1]] if step[1] else found[int(step[2])]
        except (KeyError, IndexError, TypeError) as error:
            raise ProtocolError(f"JSON body: reference {path[:80]!r} leads nowhere") from error
        return found

    def _count(self) -> None:
        self._values += 1
        if self._values > self._most:
            self._fail(f"more than {self._most} values in a body that is not plain JSON")

    def _mark(self) -> str:
        """Move to the next character that is not a blank and return it; empty at the end."""
        found = _MARK.match(self._text, self._position)
        assert found is not None, "the pattern also matches nothing"
        self._position = found.start(1)
        return found[1]

    def _object(self, depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        self._open.append(members)
        while self._mark() != "}":
            key = self._member_key(self.value(depth))
            if self._mark() != ":":
                self._fail("no `:` after a key")
            self._position += 1
            value = self.value(depth)
            if value is not None:
                members[key] = value
                self._note(members, key, value)
            self._separator("}")
        self._position += 1
        self._open.pop()
        return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._open.append(items)
        while self._mark() != "]":
            value = self.value(depth)
            items.append(value)
            self._note(items, len(items) - 1, value)
            self._separator("]")
        self._position += 1
        self._open.pop()
        return items

    def _note(self, holder: Any, key: Any, value: Any) -> None:
        if isinstance(value, dict) and len(value) == 1 and "$ref" in value:
            parent = self._open[-2] if len(self._open) > 1 else holder
            self._references.append((holder, key, value, parent))

    def _separator(self, closing: str) -> None:
        mark = self._mark()
        if mark == ",":
            self._position += 1
        elif mark != closing:
            self._fail(f"neither `,` nor `{closing}`")

    def _member_key(self, key: Any) -> str | MessageQueue:
        if isinstance(key, dict):
            return as_queue(key)
        if isinstance(key, list) or key is None:
            self._fail("a key that is neither text, number nor queue")
        return key if isinstance(key, str) else str(key)

    def _decoded(self, text: str) -> str:
        try:
            return msgspec.json.decode(text, type=str)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"JSON body, character {self._position}: {error}") from error

    def _number(self, digits: str) -> int | float:
        if digits.removeprefix("-").isdecimal():
            if len(digits) > _MAX_DIGITS:
                self._fail("a number of more than 64 bits")
            return int(digits)
        if len(digits) > _MAX_NUMBER:
            self._fail(f"a number of {len(digits)} characters")
        try:
            return float(digits)
        except ValueError:  # `_VALUE` matches `0e` in Pythons before 3.11.5
            self._fail(f"{digits} is not a number")

    def _fail(self, what: str) -> NoReturn:
        near = self._text[self._position : self._position + 20]
        raise ProtocolError(f"JSON body, character {self._position} ({near!r}): {what}")
