"""Encodes values of the application's types as JSON bodies, and decodes JSON bodies to such values. Knows no messages.

Types are those of `msgspec` (for example dataclasses, `msgspec.Struct`, `TypedDict` and `list[int]`), and pydantic's
models and dataclasses. pydantic is imported only for pydantic's types.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from pyromq.errors import IllegalMessage, UnfitBody, UsageError
from pyromq.excerpt import excerpt

T = TypeVar("T")


def encode_json(value: object) -> bytes:
    """Return the value as UTF-8 JSON. Raises `IllegalMessage` for a value that JSON cannot express."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise IllegalMessage(f"a {type(value).__name__} cannot be a body of JSON: {excerpt(error)}") from error


def json_reader(type_: type[T]) -> Callable[[bytes], T]:
    """Return a decoder of bodies to values of a type.

    The decoder raises `UnfitBody` for a body that does not fit the type. Raises `UsageError` for a type that JSON
    cannot be decoded to.
    """
    try:
        return _reader(cast("Hashable", type_))
    except TypeError:  # the type cannot be hashed; such types are rare, and their decoders are not cached
        return _reader.__wrapped__(type_)


def parts_of(type_: Any) -> Iterator[msgspec.inspect.Type]:
    """Yield msgspec's description of a type and of each of its parts, once each.

    Parts of pydantic's models are left out.
    """
    seen: set[int] = set()
    left: list[object] = [msgspec.inspect.type_info(type_)]
    while left:
        part = left.pop()
        if isinstance(part, tuple):
            left.extend(part)
        elif isinstance(part, msgspec.inspect.Field):
            left.append(part.type)
        elif isinstance(part, msgspec.inspect.Type) and id(part) not in seen:
            seen.add(id(part))
            yield part
            left.extend(msgspec.structs.asdict(part).values())


@lru_cache(maxsize=256)
def _reader(type_: Any) -> Callable[[bytes], Any]:
    decode: Callable[[bytes], Any]
    try:
        if _is_pydantic(type_):
            from pydantic import TypeAdapter

            decode = TypeAdapter(type_).validate_json
        else:
            _check(type_)
            decode = msgspec.json.Decoder(type_, dec_hook=_nested).decode
    except (TypeError, NameError, RuntimeError) as error:
        raise UsageError(f"bodies cannot be read as {_name(type_)}: {error}") from error

    def read(body: bytes) -> Any:
        try:
            return decode(body)
        except Exception as error:  # a type's own code, for example `__post_init__`, may raise anything
            raise UnfitBody(f"the body is no {_name(type_)}: {excerpt(_reason(error))}") from error

    return read


def _is_pydantic(type_: object) -> bool:
    return isinstance(type_, type) and hasattr(type_, "__pydantic_validator__")


def _check(type_: object) -> None:
    """Raise `TypeError` for a type that neither msgspec nor pydantic knows, or that has such a part."""
    for part in parts_of(type_):
        if isinstance(part, msgspec.inspect.CustomType) and part.cls is not object and not _is_pydantic(part.cls):
            kinds = "a dataclass, a msgspec.Struct, a pydantic model, or a type of Python's own"
            raise TypeError(f"{_name(part.cls)} is none that JSON can be made into: {kinds}")


def _nested(type_: type[Any], value: object) -> object:
    """Return part of a decoded value as a pydantic model; msgspec calls this for types that msgspec does not know."""
    if type_ is object:
        return value
    from pydantic import TypeAdapter

    return TypeAdapter(type_).validate_python(value)


def _plain(value: object) -> object:
    """Return a value of an unknown type in a form that msgspec can encode."""
    if _is_pydantic(type(value)):
        from pydantic import TypeAdapter

        return TypeAdapter(type(value)).dump_python(value, mode="json")
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _reason(error: Exception) -> str:
    """Return the fault on one line. The text of pydantic's own error has several lines and quotes the body."""
    errors = getattr(error, "errors", None)  # a method of pydantic's errors
    if errors is not None:
        places = [(".".join(map(str, each["loc"])), each["msg"]) for each in errors(include_url=False)]
        return "; ".join(f"{place}: {text}" if place else text for place, text in places)
    return str(error)


def _name(type_: object) -> str:
    return type_.__name__ if isinstance(type_, type) else str(type_)
