from typing import Generic, TypeVar

M = TypeVar("M")

class RecordDecoder(Generic[M]):
    def __init__(self, message_class: type[M]) -> None: ...
    def decode(self, buffer: bytes | bytearray | memoryview, position: int, check_crc: bool) -> M | None: ...
    def decode_all(
        self, buffer: bytes | bytearray | memoryview, check_crc: bool, broker_name: str
    ) -> list[M] | None: ...
    def decode_holding(
        self,
        buffer: bytes | bytearray | memoryview,
        words: tuple[bytes, ...],
        broker_name: str,
        text: bytes | None = None,
    ) -> list[M] | None: ...

def pass_records(buffer: bytes | bytearray | memoryview, position: int, end: int, text: bytes) -> int: ...
def java_hash(text: str) -> int: ...
