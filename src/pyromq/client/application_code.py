"""Calls application code, for example listeners and checks, and turns an exception of any class into a value."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from pyromq.errors import UsageError

T = TypeVar("T")


def was_thrown_in(error: BaseException) -> bool:
    """Return whether an error was thrown into awaited code from outside.

    This is so if the awaiting task is being cancelled, or its event loop no longer runs.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0  # otherwise the awaited code raised the error itself
    return isinstance(error, GeneratorExit) and asyncio._get_running_loop() is None


def check_takes(function: object, *arguments: str, what: str) -> None:
    """Raise `UsageError` if `function` is a generator or cannot be called with these positional arguments.

    `what` names the function in the error. A function without a known signature passes, for example some builtins.
    """
    if not callable(function):
        raise UsageError(f"{what} is a function of ({', '.join(arguments)}), not {picture_of(function)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{what} is {picture_of(function)}, a generator, whose body would not run; write it without `yield`"
        )
    try:
        # Signature of the decorator, not of the decorated function.
        signature = inspect.signature(function, follow_wrapped=False)
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
    """Return whether the result of a call of the function must be awaited."""
    function: Callable[..., object] = application_function
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  inspected, not called


def called(function: Callable[[T], object], argument: T) -> tuple[object, BaseException | None]:
    """Call a plain function. Return its result and None, or None and the exception it raised."""
    try:
        return function(argument), None
    except BaseException as error:  # noqa: BLE001  application code may raise any class
        return None, error


async def awaited(awaitable: Awaitable[object]) -> tuple[object, BaseException | None]:
    """Await application code. Return its result and None, or None and the exception it raised.

    Raises only an error thrown in from outside, for example by cancelling the task.
    """
    try:
        return await awaitable, None
    except BaseException as error:
        if was_thrown_in(error):
            raise
        return None, error


def text_of(failure: BaseException) -> str:
    """Return the type and text of an exception; if its `__str__` fails, the text says so."""
    name = type(failure).__name__
    try:
        text = str(failure)
    except BaseException as error:  # noqa: BLE001  `__str__` is application code
        return f"{name}, whose text cannot be made ({type(error).__name__})"
    return f"{name}: {text}" if text else name


def picture_of(value: object) -> str:
    """Return the first 100 characters of a value's `repr`, or its type if `repr` fails."""
    try:
        return f"{value!r:.100}"
    except BaseException:  # noqa: BLE001  `__repr__` is application code
        return f"an {type(value).__name__}"
