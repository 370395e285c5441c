from collections.abc import Sequence

class HeaderReader:
    code: int
    def __init__(self, code: int, layout: Sequence[tuple[str, str, bool]]) -> None: ...
    def values(
        self, serialization: int, header: bytes
    ) -> tuple[int, int, int, list[int | bool | str | None]] | None: ...

class ReplyWriter:
    def __init__(self, line: bytes, binary: tuple[bytes, list[tuple[bytes, bytes, int]]]) -> None: ...
    def frame(
        self, values: Sequence[int | bytes], opaque: int, body_size: int = 0, serialization: int = 0
    ) -> bytes: ...
