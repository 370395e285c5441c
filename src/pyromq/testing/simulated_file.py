"""One file of a simulated disk: what processes see of it, and what is on disk."""

from __future__ import annotations

from enum import Enum, auto
from random import Random

SECTOR = 512  # what a disk writes whole
BLOCK = 4096  # what a file system gives to a file
_TORN = 0.5  # how often a mapped file's last sector with anything in it holds only a part of what was written


class Loss(Enum):
    """What a power cut takes of what was not flushed."""

    ALL = auto()
    NOTHING = auto()
    BACK = auto()  # of each file and folder the latter part
    ANY = auto()  # sector by sector, name by name


class SimulatedFile:
    """`content` may be longer than the file: behind `size` it is zero. `lasting` is what the disk holds."""

    __slots__ = ("blocks", "content", "is_mapped", "lasting", "neglected", "size")

    def __init__(self, content: bytes = b"", blocks: frozenset[int] = frozenset()) -> None:
        self.content = bytearray(content)
        self.size = len(content)
        self.is_mapped = False  # and so may be written to disk in the middle of a change
        self.lasting = bytes(content)
        self.neglected: dict[int, bytes] = {}  # sectors that count as written since their write failed
        self.blocks = set(blocks)  # that the file system has given

    def resize(self, size: int) -> None:
        self.content[size : self.size] = bytes(max(0, self.size - size))
        if size > len(self.content):
            self.content = self.content + bytes(size - len(self.content))  # views of the old one are of a shorter file
        self.size = size

    def unwritten(self) -> list[int]:
        """Return the sectors that differ from those on disk."""
        now, then = self.content, self.lasting
        if now == then:
            return []
        return [
            at for at in range(0, self.size, SECTOR) if now[at : min(at + SECTOR, self.size)] != then[at : at + SECTOR]
        ]

    def flushed(self) -> bytes:
        """Return what the disk holds after a flush of what there is now."""
        content = bytearray(self.content[: self.size])
        for at, neglected in self.neglected.items():
            if content[at : at + SECTOR] == neglected:
                content[at : at + SECTOR] = self.lasting[at : at + SECTOR].ljust(len(neglected), b"\0")
        return bytes(content)

    def left(self, loss: Loss, random: Random) -> bytes:
        """Return what is left by a power cut."""
        new = self.flushed()
        old = self.lasting
        if loss is Loss.ALL or new == old:
            return old
        if loss is Loss.NOTHING:
            return new
        size = len(new) if random.random() < 0.5 else len(old)
        content = bytearray(old[:size].ljust(size, b"\0"))
        changed = [at for at in self.unwritten() if at < size]
        if loss is Loss.BACK:
            kept = changed[: random.randint(0, len(changed))]
        else:
            share = random.random()
            kept = [at for at in changed if random.random() < share]
        for at in kept:
            end = min(at + SECTOR, size)
            is_tail = at == kept[-1] and not any(old[end:])
            if loss is Loss.BACK and is_tail and self.is_mapped and random.random() < _TORN:
                end = random.randint(at, end)
            content[at:end] = new[at:end].ljust(end - at, b"\0")
        return bytes(content)
