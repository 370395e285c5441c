"""Bodies of JSON: what values become, and what is said of those that are not what was asked for."""

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from pyromq import Message, StoredMessage
from pyromq.errors import IllegalMessage, UndecodableBody, UnfitBody, UsageError
from pyromq.sys_flag import SysFlag


@dataclass
class Line:
    article: str
    count: int = 1


class Order(msgspec.Struct):
    at: datetime
    lines: list[Line]


ORDER = Order(datetime(2026, 1, 2, tzinfo=UTC), [Line("tea"), Line("milk", 2)])


def stored(body, sys_flag=0):
    return StoredMessage("orders", body, sys_flag=sys_flag)


@pytest.mark.parametrize("value", [None, 1, "text", [1, 2.5], {"a": {"b": None}}])
def test_pythons_own_types_come_back(value):
    assert stored(Message.json("orders", value).body).json() == value


def test_declared_types_come_back():
    message = Message.json("orders", ORDER, tags="paid", keys="o1")
    assert (message.tags, message.keys) == ("paid", ("o1",))
    assert stored(message.body).json(Order) == ORDER
    assert stored(message.body).json()["lines"][1] == {"article": "milk", "count": 2}
    assert stored(b"[1, 2]").json(list[int]) == [1, 2]


def test_pydantics_models_come_back_also_inside_of_others():
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        at: datetime
        count: int = pydantic.Field(gt=0)

    model = Model(at=datetime(2026, 1, 2, tzinfo=UTC), count=1)
    assert stored(Message.json("orders", model).body).json(Model) == model
    assert stored(Message.json("orders", [model]).body).json(list[Model]) == [model]
    with pytest.raises(
        UnfitBody, match=r"^the body is no Model: at: Field required; count: Input should be greater than 0$"
    ):
        stored(b'{"count": 0}').json(Model)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body is no Order: Input data was truncated"),
        (b"{}", "the body is no Order: Object missing required field `at`"),
        (b"[" * 100_000, "the body is no Order: Expected `object`, got `array`"),
        (b'{"at": "\xff"}', "the body is no Order: "),
    ],
)
def test_what_does_not_fit_is_named(body, text):
    with pytest.raises(UnfitBody) as error:
        stored(body).json(Order)
    assert str(error.value).startswith(text)


def test_nesting_without_end_is_refused():
    with pytest.raises(UnfitBody):
        stored(b"[" * 100_000).json()


def test_a_body_that_cannot_be_decompressed_stays_one():
    with pytest.raises(UndecodableBody):
        stored(b"no zlib", SysFlag.COMPRESSED).json()


def test_what_json_cannot_say_is_refused():
    with pytest.raises(IllegalMessage, match="a object cannot be a body of JSON: object has no form"):
        Message.json("orders", object())


def test_what_json_cannot_be_made_into_is_said_whatever_the_body():
    class Unknown:
        pass

    @dataclass
    class Tree:
        """Of itself, and of something else."""

        branches: list["Tree"]
        leaf: tuple[Unknown, int] | None = None

    for type_ in (Unknown, list[Unknown], dict[str, Unknown], Tree, "Order", 5):
        with pytest.raises(UsageError, match="bodies cannot be read as "):
            stored(b"no JSON").json(type_)


def test_whatever_a_type_says_of_a_body_is_a_reason():
    @dataclass
    class Strict:
        id: int

        def __post_init__(self):
            raise KeyError("never")

    with pytest.raises(UnfitBody, match="the body is no Strict: 'never'"):
        stored(b'{"id": 1}').json(Strict)
