"""Maps types of applications to Arrow types, and their values to Arrow columns. No Spark here.

msgspec inspects the types; a pydantic model is inspected field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
from msgspec import inspect

from pyromq.errors import IllegalMessage, UsageError
from pyromq.json_body import json_reader

_PLAIN: dict[type[inspect.Type], pa.DataType] = {
    inspect.BoolType: pa.bool_(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.StrType: pa.string(),
    inspect.UUIDType: pa.string(),
    inspect.BytesType: pa.binary(),
    inspect.DateTimeType: pa.timestamp("us", tz="UTC"),
    inspect.DateType: pa.date32(),
    inspect.DecimalType: pa.decimal128(38, 18),
}
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)

Values = Callable[[Iterable[bytes | None], Iterable[str | None]], tuple[pa.Array, pa.Array]]


def arrow_type(type_: Any) -> pa.DataType:
    """Return the Arrow type of a column with values of this type.

    Raises `UsageError` for a type that has no Arrow type.
    """
    json_reader(type_)  # raises for a type that JSON cannot be parsed to
    return _of(inspect.type_info(type_), type_, ())


def values_of(type_: Any) -> Values:
    """Return a function that parses bodies, given with their decoding errors.

    The function returns two Arrow columns: the values, and the error where a value is null.
    """
    read, column = json_reader(type_), arrow_type(type_)

    def values(bodies: Iterable[bytes | None], undecodable: Iterable[str | None]) -> tuple[pa.Array, pa.Array]:
        found: list[object] = []
        reasons: list[str | None] = []
        for body, reason in zip(bodies, undecodable, strict=True):
            value: object = None
            if body is None or reason is not None:
                reason = reason or "the body is null"
            else:
                try:
                    value = _plain(read(body))
                except IllegalMessage as error:
                    reason = str(error)
            found.append(value)
            reasons.append(reason)
        return _column(found, reasons, column), pa.array(reasons, pa.string())

    return values


def _column(values: list[object], reasons: list[str | None], column: pa.DataType) -> pa.Array:
    """Return the values as an Arrow column.

    A value that does not fit, for example an integer of 65 bits, becomes null with a reason in `reasons`.
    """
    try:
        return pa.array(values, column)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        for place, value in enumerate(values):
            try:
                pa.array([value], column)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                values[place], reasons[place] = None, f"the value does not fit its column: {error}"
        return pa.array(values, column)


def _of(info: inspect.Type, type_: Any, above: tuple[Any, ...]) -> pa.DataType:
    if type(info) in _PLAIN:
        return _PLAIN[type(info)]
    if isinstance(info, inspect.UnionType):
        others = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        if len(others) == 1:
            return _of(others[0], type_, above)
    if isinstance(info, _LISTS):
        return pa.list_(_of(info.item_type, type_, above))
    if isinstance(info, inspect.DictType) and isinstance(info.key_type, inspect.StrType):
        return pa.map_(pa.string(), _of(info.value_type, type_, above))
    if isinstance(info, inspect.EnumType | inspect.LiteralType):
        return _of_choices(info, type_)
    if isinstance(info, _RECORDS) and info.cls not in above:
        return pa.struct([(each.encode_name, _of(each.type, type_, (*above, info.cls))) for each in info.fields])
    if isinstance(info, inspect.CustomType) and info.cls not in above and hasattr(info.cls, "model_fields"):
        fields = {name: inspect.type_info(field.annotation) for name, field in info.cls.model_fields.items()}
        return pa.struct([(name, _of(each, type_, (*above, info.cls))) for name, each in fields.items()])
    part = getattr(info, "cls", type(info)).__name__
    raise UsageError(
        f"{getattr(type_, '__name__', type_)} has no column type, because of {part} in it; columns are of numbers,"
        " strings, times, lists, dicts with string keys, and records of these that do not contain themselves"
    )


def _of_choices(info: inspect.EnumType | inspect.LiteralType, type_: Any) -> pa.DataType:
    choices = [each.value for each in info.cls] if isinstance(info, inspect.EnumType) else info.values
    kinds = {type(choice) for choice in choices}
    if kinds <= {str}:
        return pa.string()
    if kinds <= {int}:
        return pa.int64()
    raise UsageError(f"{getattr(type_, '__name__', type_)} has no column type: {choices!r:.100} are of several types")


def _plain(value: Any) -> object:
    """Return a value as dicts, lists and plain values, for Arrow.

    Unlike `msgspec.to_builtins`, this keeps the default values of dataclasses that msgspec made.
    """
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, msgspec.Struct):
        names = msgspec.structs.fields(value)
        return {field.encode_name: _plain(getattr(value, field.name)) for field in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    return _plain(value.model_dump()) if hasattr(value, "model_dump") else value
