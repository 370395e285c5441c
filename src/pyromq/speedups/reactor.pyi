import socket
from asyncio import AbstractEventLoop
from asyncio import Transport as AsyncioTransport
from collections.abc import Callable, Sequence
from selectors import DefaultSelector
from typing import Any

from pyromq.speedups.fast_path import FastHandler

class Transport(AsyncioTransport):
    heard: float
    parked: int
    @property
    def is_within_frame(self) -> bool: ...
    def set_address(self, packed: bytes) -> None: ...

class Reactor:
    def __init__(
        self,
        loop: AbstractEventLoop,
        *,
        monotonic: Callable[[], float],
        fast_path: Sequence[FastHandler] = (),
        busy_poll_us: int = 0,
        kept_bytes: int = ...,
        selector: ServingSelector | None = None,
    ) -> None: ...
    def add(self, sock: socket.socket, protocol: Any) -> Transport: ...
    def close(self) -> None: ...

class ServingSelector(DefaultSelector):
    reactors: dict[int, Reactor]
