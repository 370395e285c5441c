from collections.abc import Callable

class FastHandler:
    code: int

class FastGuard: ...

class ParkedReplies:
    def __init__(
        self,
        capacity: int,
        *,
        monotonic: Callable[[], float],
        free_room: Callable[[], int],
        confirm: Callable[[], None],
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def oldest_since(self) -> float | None: ...
    def release(self, log_offset: int) -> bool: ...
    def fail(self, log_offset: int, since: float, change: Callable[[bytes], bytes]) -> bool: ...
