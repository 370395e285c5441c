"""The application's code, called by us: listeners, checks. Whatever comes out of it is a value here and ends nothing.

Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from pyromq.errors import UsageError

T = TypeVar("T")


def was_thrown_in(error: BaseException) -> bool:
    """Whether what came out of awaited code was thrown into it: our task is cancelled, or its loop is gone."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0  # else the code has cancelled itself
    return isinstance(error, GeneratorExit) and asyncio._get_running_loop() is None


def check_takes(function: object, *arguments: str, what: str) -> None:
    """Raise `UsageError` for what cannot be called with these positional arguments, or does nothing when called.

    A function passes whose signature is not known, as that of some builtins.
    """
    if not callable(function):
        raise UsageError(f"{what} is a function of ({', '.join(arguments)}), not {picture_of(function)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{what} is {picture_of(function)}, a generator: nothing of it would run; write no `yield` there"
        )
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # what a decorator passes on is its own affair
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UsageError(
            f"{what} is called with ({', '.join(arguments)}), which {picture_of(function)} with signature {signature} "
            f"does not take: {error}"
        ) from None


def is_async(application_function: Callable[..., object]) -> bool:
    """Whether calling it gives something to be awaited."""
    function: Callable[..., object] = application_function
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  its kind is asked


def called(function: Callable[[T], object], argument: T) -> tuple[object, BaseException | None]:
    """Return what a plain function returns and what it raises."""
    try:
        return function(argument), None
    except BaseException as error:  # noqa: BLE001  it may raise anything
        return None, error


async def awaited(awaitable: Awaitable[object]) -> tuple[object, BaseException | None]:
    """Return what async code returns and what it raises. Raises only what is thrown in from outside."""
    try:
        return await awaitable, None
    except BaseException as error:
        if was_thrown_in(error):
            raise
        return None, error


def text_of(failure: BaseException) -> str:
    """Return type and text of an exception, which may be unable to give one."""
    name = type(failure).__name__
    try:
        text = str(failure)
    except BaseException as error:  # noqa: BLE001  the text is made by the application's code
        return f"{name}, whose text cannot be made ({type(error).__name__})"
    return f"{name}: {text}" if text else name


def picture_of(value: object) -> str:
    """Return the beginning of what `repr` says of a value, or its type where `repr` fails."""
    try:
        return f"{value!r:.100}"
    except BaseException:  # noqa: BLE001  as above
        return f"an {type(value).__name__}"
