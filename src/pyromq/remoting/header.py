"""The base class of declared headers: wire names, text values, second spellings.

A header is declared once, as a struct. Encoding, decoding and checks follow from the declaration. On the wire all
values are strings: decimal numbers, `true` or `false`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from string import ascii_lowercase
from types import UnionType
from typing import Any, ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, field

from pyromq.errors import MissingField, ProtocolError

__all__ = [
    "Filled",
    "Header",
    "HeaderTemplate",
    "field",
    "json_text",
    "parse_header",
    "request_headers",
    "respell",
    "wire_fields",
]


# Makes headers frozen. As keywords in the class line, type checkers would want the options in every subclass.
_DECLARATION: dict[str, Any] = {"frozen": True, "rename": "camel"}


class Header(msgspec.Struct, **_DECLARATION):
    """Base class of request and response headers.

    The wire name of a field is its camelCase unless `field(name=)` is given. A request sets `code` and, if there are
    any, `reply_header` (the header of the response), `request_body` and `reply_body` (classes of JSON bodies; None: raw
    bytes or no body).
    """

    code: ClassVar[int] = -1
    reply_header: ClassVar[type[Header] | None] = None
    request_body: ClassVar[type[Any] | None] = None
    reply_body: ClassVar[type[Any] | None] = None


class RawFields(Header):
    """The fields of a request or response that is forwarded as received, without decoding its declared header."""

    number: int  # the code of the request or response
    texts: dict[str, str]  # by wire name

    @property
    def code(self) -> int:  # type: ignore[override]  # of one command, not of a class
        return self.number


H = TypeVar("H", bound=Header)


class WireField(NamedTuple):
    """One field of a header on the wire. `kind` is `int`, `bool` or `str`."""

    attribute: str
    wire_name: str
    kind: type
    required: bool
    default: Any


@cache
def wire_layout(header: type[Header]) -> tuple[WireField, ...]:
    return tuple(
        WireField(f.name, f.encode_name, _kind(f.type), f.required, None if f.default is NODEFAULT else f.default)
        for f in msgspec.structs.fields(header)
    )


def header_layout(header: type[Header]) -> list[tuple[str, str, bool]]:
    """Return wire name, kind (`int`, `bool`, `str`) and `is required` of each field of a header, for compiled code."""
    return [(field.wire_name, field.kind.__name__, field.required) for field in wire_layout(header)]


def _kind(annotation: Any) -> type:
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(choice for choice in get_args(annotation) if choice is not type(None))
    if annotation in (int, bool, str):
        return annotation  # type: ignore[no-any-return]  # just compared with three classes
    raise TypeError(f"a header field is int, bool or str, not {annotation!r}")


def wire_fields(header: Header) -> dict[str, str]:
    """Return the fields of a header as strings by wire name. Fields that are None are omitted."""
    if isinstance(header, RawFields):
        return header.texts
    fields = {}
    for attribute, wire_name, kind, _, _ in wire_layout(type(header)):
        value = getattr(header, attribute)
        if value is None:
            continue
        if kind is bool:
            value = "true" if value else "false"
        fields[wire_name] = value if kind is str else str(value)
    return fields


def parse_header(header: type[H], fields: Mapping[str, Any]) -> H:
    """Decode a header as Java does: numbers and booleans may be JSON values; any string but `true` is false.

    Raises `MissingField` with Java's text, or `ProtocolError` that names a field whose value is not a number.
    """
    values = {}
    for attribute, wire_name, kind, required, default in wire_layout(header):
        value = fields.get(wire_name)
        if value is None:
            if required:
                raise MissingField(f"the custom field <{wire_name}> is null")
            values[attribute] = default
        else:
            values[attribute] = _READERS[kind](wire_name, value)
    return header(**values)


def _read_int(name: str, value: Any) -> int:
    text = str(value)
    # Java's parser accepts only ASCII digits and a sign; Python's parser also accepts blanks and underscores.
    if text.isascii() and text.lstrip("+-").isdigit() and len(text) <= 20:
        try:
            number = int(text)
        except ValueError:  # a string with two signs
            number = 1 << 64
        if -(1 << 63) <= number < 1 << 63:
            return number
    raise ProtocolError(f'header field {name}: For input string: "{text[:64]}"')


def _read_bool(_name: str, value: Any) -> bool:
    return str(value).lower() == "true"


def _read_text(_name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_READERS: dict[type, Callable[[str, Any], Any]] = {int: _read_int, bool: _read_bool, str: _read_text}


def respell(header: type[Header], code: int, name: str, *, letters: bool = False) -> type[Any]:
    """Return a subclass of `header` under another request code, whose fields have the same attributes.

    With `letters`, the wire names are a, b, c and so on, in the order of declaration. Source:
    SendMessageRequestHeaderV2.
    """
    fields = msgspec.structs.fields(header)
    names = ascii_lowercase if letters else [f.encode_name for f in fields]
    declared = [
        (f.name, f.type, field(name=wire) if f.default is NODEFAULT else field(name=wire, default=f.default))
        for wire, f in zip(names, fields, strict=False)
    ]
    return msgspec.defstruct(
        name, declared, bases=(header,), namespace={"code": code}, frozen=True, kw_only=True, module=header.__module__
    )


def request_headers() -> dict[int, type[Header]]:
    """Return the class of every declared request header by request code."""
    declared = (header for header in _subclasses(Header) if header is not RawFields)
    return {int(header.code): header for header in declared if header.code >= 0}


def _subclasses(header: type[Header]) -> Iterator[type[Header]]:
    for subclass in header.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


class HeaderTemplate:
    """A header prepared as JSON in which only some fields vary. Filling the template costs one formatting.

    `constants` are encoded once; a constant None is omitted. `variables` are the int fields filled for each command, in
    order. `formats` gives a variable another printf format than decimal, whose result needs no JSON escaping; `%b` is
    for a string escaped by `json_text`.
    """

    def __init__(
        self,
        header: type[Header],
        variables: tuple[str, ...],
        *,
        formats: Mapping[str, str] | None = None,
        **constants: str | int | None,
    ) -> None:
        self.code = int(header.code)
        self.request_line = b""  # JSON header of a request; set by module `command`, like `request_writer`
        self.request_writer: Any = None  # compiled function that writes the request
        self._header = header
        self._variables = variables
        self._formats = formats or {}
        self._constants = constants
        names = {f.attribute: f.wire_name for f in wire_layout(header)}
        fixed = {names[name]: _read_text(name, value) for name, value in constants.items() if value is not None}
        holes = [f'"{names[name]}":"{self._formats.get(name, "%d")}"'.encode() for name in variables]
        text = msgspec.json.encode(fixed)[1:-1].replace(b"%", b"%%")
        self.ext_json = b"{%b}" % b",".join([*holes, text] if text else holes)

    def header(self, values: tuple[int | bytes, ...]) -> Header:
        """Return the header struct with these values of the variables, for encoding in another form."""
        fields: dict[str, str | int] = {
            name: self._value(name, value) for name, value in zip(self._variables, values, strict=True)
        }
        return self._header(**fields, **self._constants)

    def entries(self) -> list[tuple[str, str, int]]:
        """Return, for each field in wire order: wire name, text, and number of the variable (-1 for a constant).

        The text of a variable is its format.
        """
        entries = []
        for each in wire_layout(self._header):
            if each.attribute in self._variables:
                text = self._formats.get(each.attribute, "%d")
                entries.append((each.wire_name, text, self._variables.index(each.attribute)))
            elif each.attribute in self._constants:
                entries.append((each.wire_name, _read_text("", self._constants[each.attribute]), -1))
            elif each.default is not None:
                entries.append((each.wire_name, _read_text("", each.default), -1))
        return entries

    def _value(self, name: str, value: int | bytes) -> str | int:
        if isinstance(value, bytes):
            return msgspec.json.decode(b'"%b"' % value, type=str)
        return self._formats[name] % value if name in self._formats else value


def json_text(text: str) -> bytes:
    """Return a string escaped for JSON, without the enclosing quotes."""
    return msgspec.json.encode(text)[1:-1]


class Filled(msgspec.Struct, gc=False):
    """A header template with values for its variables, in the template's order."""

    template: HeaderTemplate
    values: tuple[int | bytes, ...]

    @property
    def code(self) -> int:
        return self.template.code

    @property
    def header(self) -> Header:
        return self.template.header(self.values)
