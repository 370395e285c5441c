"""Type checks of arguments to public client methods, made from their annotations.

These checks are too slow for methods called per message, which have checks written by hand (see `pending_send`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.names import check_topic

T = TypeVar("T")


class ArgumentKind(NamedTuple):
    """A type of argument: the words for it in errors, and the test whether a value fits."""

    words: str
    fits: Callable[[Any], bool]


def checked(target: T) -> T:
    """Make a function, or a class's public methods and `__init__`, raise `UsageError` for arguments of a wrong type.

    Annotations for which there is no test, for example type variables and protocols, allow every value.
    """
    if not isinstance(target, type):
        return cast(T, _checked(cast(Callable[..., Any], target)))
    for name, member in list(vars(target).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(target, name, _checked(member))
    return cast(T, target)


def check_fields(record: object) -> None:
    """Raise `UsageError` if a field of a dataclass object has a value of a wrong type."""
    for name, kind in _kinds(cast(Callable[..., Any], type(record))).items():
        _check(name, getattr(record, name), kind)


def check_queue(name: str, value: MessageQueue) -> None:
    """Raise `UsageError` if the argument `name` is no `MessageQueue`, `IllegalName` if its topic is illegal."""
    _check(name, value, _PLAIN[MessageQueue])
    check_topic(value.topic)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(function).parameters)[1:]  # all but `self`
    if not names:
        return function

    def check(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        kinds = _kinds(function)
        # Not strict: with too many arguments, the call itself raises TypeError.
        for name, value in (*zip(names, positional, strict=False), *named.items()):
            if name in kinds:
                _check(name, value, kinds[name])

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def checked_first(self: object, /, *positional: Any, **named: Any) -> Any:
            check(positional, named)
            return await function(self, *positional, **named)

    else:

        @wraps(function)
        def checked_first(self: object, /, *positional: Any, **named: Any) -> Any:
            check(positional, named)
            return function(self, *positional, **named)

    return checked_first


def _check(name: str, value: object, kind: ArgumentKind) -> None:
    if not kind.fits(value):
        what = "no number" if isinstance(value, float) and value != value else type(value).__name__
        raise UsageError(f"{name}={value!r:.80} is {what}; it must be {kind.words}")


@cache
def _kinds(target: Callable[..., Any]) -> dict[str, ArgumentKind]:
    hints = {name: hint for name, hint in get_type_hints(target).items() if name != "return"}
    return {name: kind for name, hint in hints.items() if (kind := _kind(hint)) is not None}


def _is_queue(value: object) -> bool:
    return isinstance(value, MessageQueue) and [type(each) for each in value] == [str, str, int]


_PLAIN: dict[object, ArgumentKind] = {
    NoneType: ArgumentKind("None", lambda value: value is None),
    bool: ArgumentKind("True or False", lambda value: isinstance(value, bool)),
    str: ArgumentKind("a string", lambda value: isinstance(value, str)),
    bytes: ArgumentKind("bytes", lambda value: isinstance(value, bytes)),
    int: ArgumentKind("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: ArgumentKind(
        "a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == value
    ),
    MessageQueue: ArgumentKind("a MessageQueue", _is_queue),
}


def _kind(hint: Any) -> ArgumentKind | None:
    """Return the `ArgumentKind` of an annotation; None if the annotation allows every value."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [_kind(each) for each in inner]
        return None if None in kinds else _any_of([kind for kind in kinds if kind is not None])
    if origin is Callable:
        return ArgumentKind("a function", callable)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _table(_kind(inner[0]), _kind(inner[1]))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _several(_kind(inner[0]))
    if isinstance(hint, type) and hint not in (object, Any) and not getattr(hint, "_is_protocol", False):
        return ArgumentKind(f"a {hint.__name__}", lambda value: isinstance(value, hint))
    return None


def _any_of(kinds: list[ArgumentKind]) -> ArgumentKind:
    words = dict.fromkeys(kind.words for kind in kinds)
    return ArgumentKind(" or ".join(words), lambda value: any(kind.fits(value) for kind in kinds))


def _several(item: ArgumentKind | None) -> ArgumentKind:
    def fits(value: Any) -> bool:
        if isinstance(value, str | bytes | MessageQueue) or not isinstance(value, Iterable):
            return False
        # The items of an iterator are not checked: that would consume them.
        return item is None or isinstance(value, Iterator) or all(map(item.fits, value))

    return ArgumentKind("several" if item is None else f"several, each {item.words}", fits)


def _table(key: ArgumentKind | None, entry: ArgumentKind | None) -> ArgumentKind:
    def fits(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            (key is None or key.fits(name)) and (entry is None or entry.fits(each)) for name, each in value.items()
        )

    words = " to ".join(kind.words for kind in (key, entry) if kind is not None)
    return ArgumentKind(f"a dict of {words}", fits)
