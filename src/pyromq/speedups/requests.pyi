from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

A = TypeVar("A")

class RequestWriter:
    def __init__(self, line: bytes) -> None: ...
    def frame(self, values: tuple[int | bytes, ...], flag: int, opaque: int, body: bytes) -> bytes | None: ...

class AnswerReader(Generic[A]):
    def __init__(self, response: type[A], max_frame_bytes: int) -> None: ...
    def deliver(self, data: bytes, waiting: dict[int, Any], complete: Callable[[A], object]) -> int: ...

class PropertyWriter:
    def __init__(self, message_class: type[Any], reserved: frozenset[str]) -> None: ...
    def text(
        self, message: object, next_id: Callable[[], str], max_bytes: int, compress_from_bytes: int
    ) -> bytes | None: ...

class ResultMaker:
    def __init__(self, result_class: type[Any], ok: object) -> None: ...

class FastOutbox:
    def __init__(
        self,
        outbox: object,
        config: object,
        *,
        clock: object,
        tables: tuple[Mapping[str, object], Mapping[str, object], dict[str, int]],
        room: Sequence[object],
        properties: PropertyWriter | None,
        results: ResultMaker,
        ids: object,
        create_future: Callable[[], Future[Any]],
    ) -> None: ...
    def learn(self, route: object, queue: object, channel: object, writer: RequestWriter, timeout: float) -> None: ...
    def forget(self, topic: str) -> None: ...
    def send(self, message: object, retry_codes: frozenset[int], at_once: bool) -> Future[Any] | None: ...

class FastSend:
    queue: Any
    message_id: str
    body: bytes
    property_text: bytes
    retry_codes: frozenset[int]
    future: Future[Any]
    at_once: bool
    started: float
    deadline: float
    timeout: float
    code: int
    def answered(self, result: object) -> None: ...
