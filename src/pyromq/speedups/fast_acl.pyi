from collections.abc import Callable

from pyromq.speedups.codec import HeaderReader
from pyromq.speedups.fast_path import FastGuard

def use_openssl(is_wanted: bool = True) -> bool: ...

class Key:
    def __init__(self, secret: bytes) -> None: ...
    def signature(self, content: bytes) -> bytes: ...

class FastAcl(FastGuard):
    def __init__(
        self,
        reader: HeaderReader,
        *,
        topic: int,
        group: int,
        in_force: Callable[[], object],
        secret_of: Callable[[str], str | None],
        may: Callable[[str, str, str | None], bool],
        trusts: Callable[[bytes], bool],
    ) -> None: ...
    def judge(self, serialization: int, header: bytes, body: bytes, address: bytes) -> bool: ...

class FrameSigner:
    def __init__(self, secret: str, added: list[tuple[str, str]], as_json: bytes) -> None: ...
    def sign(self, frame: bytes) -> bytes | None: ...
