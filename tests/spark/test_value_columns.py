"""Types of applications as columns, without a Spark session."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest

pa = pytest.importorskip("pyarrow")

from pyromq.errors import UsageError  # noqa: E402
from pyromq.json_body import encode_json  # noqa: E402
from pyromq.spark.value_columns import arrow_type, values_of  # noqa: E402


class Color(Enum):
    RED = "red"


class Part(msgspec.Struct, rename="camel"):
    part_number: int
    tags: set[str] = set()


@dataclass
class Whole:
    at: datetime
    day: date
    price: Decimal
    color: Color
    size: Literal[1, 2]
    parts: dict[str, Part]
    note: str = "none"
    raw: bytes = b""


WHOLE = Whole(
    datetime(2026, 1, 2, 3, tzinfo=UTC),
    date(2026, 1, 2),
    Decimal("1.50"),
    Color.RED,
    2,
    {"a": Part(7, {"x"})},
    raw=b"\0",
)


def test_values_come_as_what_they_are():
    values, reasons = values_of(Whole)([encode_json(WHOLE)], [None])
    assert reasons.to_pylist() == [None]
    assert values.to_pylist() == [
        {
            "at": WHOLE.at,
            "day": WHOLE.day,
            "price": Decimal("1.5"),
            "color": "red",
            "size": 2,
            "parts": [("a", {"partNumber": 7, "tags": ["x"]})],
            "note": "none",
            "raw": b"\0",
        }
    ]


def test_each_row_without_a_value_has_its_reason():
    bodies = [b"[1]", None, b'["1"]', b"[2]", b"[99999999999999999999]"]
    values, reasons = values_of(list[int])(bodies, [None, None, None, "it cannot be decompressed", None])
    assert values.to_pylist() == [[1], None, None, None, None]
    first, second, third, fourth, fifth = reasons.to_pylist()
    assert (first, second, fourth) == (None, "the body is null", "it cannot be decompressed")
    assert third == "the body is no list[int]: Expected `int`, got `str` - at `$[0]`"
    assert fifth.startswith("the value does not fit its column: ")


def test_models_of_pydantic():
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel):
        count: int

    class Model(pydantic.BaseModel):
        inner: Inner
        at: datetime

    values, reasons = values_of(Model)(
        [b'{"inner": {"count": "1"}, "at": "2026-01-02T00:00:00Z"}', b"{}"], [None, None]
    )
    assert values.to_pylist() == [{"inner": {"count": 1}, "at": datetime(2026, 1, 2, tzinfo=UTC)}, None]
    assert reasons.to_pylist() == [None, "the body is no Model: inner: Field required; at: Field required"]


@dataclass
class Tree:
    branches: list["Tree"]


@pytest.mark.parametrize("type_", [Any, int | str, dict[int, str], Tree, list[Any], Literal[1, "a"]])
def test_what_makes_no_column_is_said(type_):
    with pytest.raises(UsageError, match="has no column type"):
        arrow_type(type_)


@dataclass
class Line:
    article: str
    count: int = 1


def test_defaults_are_values():
    values, _ = values_of(list[Line])([b'[{"article": "tea"}]'], [None])
    assert values.to_pylist() == [[{"article": "tea", "count": 1}]]
