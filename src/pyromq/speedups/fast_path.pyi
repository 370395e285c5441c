from collections.abc import Callable

class FastHandler:
    code: int

class FastGuard: ...

class ParkedReplies:
    is_on: bool
    holds_all: bool
    def __init__(
        self,
        capacity: int,
        *,
        monotonic: Callable[[], float],
        free_room: Callable[[], int],
        confirm: Callable[[], bool],
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def oldest_since(self) -> float | None: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    def release(self, log_offset: int) -> None: ...
    def fail(self, log_offset: int, since: float, change: Callable[[int, bytes], bytes]) -> None: ...
