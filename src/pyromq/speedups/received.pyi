from collections.abc import Callable

class ReceivedWriter:
    def __init__(
        self, meanings: dict[bytes, int], md5: Callable[[bytes], bytes], format_address: Callable[[bytes], str]
    ) -> None: ...
    def write(
        self, records: bytes, position: int, most: int, topic: bytes, handles: dict[int, bytes], invisible_ms: int
    ) -> tuple[bytes, int]: ...
