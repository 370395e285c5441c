"""Java's string hash, which RocketMQ keeps on disk: tag codes in consume queues, key hashes in index files."""

from __future__ import annotations

from operator import mul

from pyromq import speedups

# 31**k mod 2**32, highest power first, for strings of up to 256 code units; a longer string extends the list.
_powers: list[int] = [1]


def _extend_powers(count: int) -> None:
    powers = _powers[::-1]
    while len(powers) < count:
        powers.append(powers[-1] * 31 & 0xFFFFFFFF)
    _powers[:] = powers[::-1]


_extend_powers(256)


def hash_plainly(text: str) -> int:
    """Return Java's hash of a string, signed, 32 bits, over UTF-16 code units: h = 31 h + unit.

    `hash_plainly("TagA") == 2598919`.
    """
    if text.isascii():
        units: bytes | memoryview = text.encode()
    else:
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    count = len(units)
    if count > len(_powers):
        _extend_powers(count)
    value: int = sum(map(mul, units, _powers[-count:] if count else ())) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


if speedups.is_active:
    from pyromq.speedups.decoding import java_hash as java_hash
else:
    java_hash = hash_plainly
