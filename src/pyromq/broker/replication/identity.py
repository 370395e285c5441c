"""The identity of a replica: its number, and the incarnation of its data, in the file `replica` of the data folder.

    replica      a checked file (see `store.checked_file`) of JSON:
    number       the replica's number in its set, null until it has one
    incarnation  a random number; a new one is drawn if bytes may be lost that this replica had reported to a master
    async        whether bytes were reported before they were flushed, since the last start after a clean stop

A replica with a new incarnation is not in sync, because its log may lack confirmed messages. RocketMQ has no such file,
and ignores it.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from pyromq.errors import StoreCorrupt, StoreNotWritable, UsageError
from pyromq.logs import logger_of
from pyromq.store.checked_file import read_checked, replace_checked
from pyromq.store.disk import LOCAL_DISK, Disk, disk_advice

logger = logger_of(__name__)

_LARGEST_INCARNATION = (1 << 48) - 1  # exact as a number of any JSON reader


class _Content(msgspec.Struct, frozen=True):
    number: int | None
    incarnation: int
    is_async: bool = msgspec.field(name="async")


class Identity:
    """Number and incarnation of the replica in one data folder. The caller must hold the lock of the folder.

    `number` is None until the replica has a number. Call `load` before `MessageStore.open`.
    """

    def __init__(self, root: Path, disk: Disk = LOCAL_DISK) -> None:
        self._content = _Content(None, 0, is_async=False)
        self._path = root / "replica"
        self._disk = disk

    @property
    def number(self) -> int | None:
        return self._content.number

    @property
    def incarnation(self) -> int:
        return self._content.incarnation

    def load(self, *, crashed: bool, lost_unflushed: bool, flush_async: bool) -> None:
        """Read the file. Draw a new incarnation if the folder has none, or if reported bytes may be lost.

        `crashed` and `lost_unflushed` are the properties of `MessageStore`. `flush_async`: from this start on, the
        replica reports bytes before they are flushed. Durable on return. Raises `StoreCorrupt` and `StoreNotWritable`.
        """
        self._content = self._read() or self._content
        incarnation, was_async = self.incarnation or _fresh(), self._content.is_async
        if lost_unflushed and was_async:
            incarnation = _fresh()
            logger.warning(
                "unflushed messages may be lost: this replica has a new incarnation, and is in sync again once it"
                " has copied everything from its master"
            )
        self._change(incarnation=incarnation, is_async=flush_async or (crashed and was_async))

    def renew(self) -> None:
        """Draw a new incarnation, because the log is emptied. Durable on return."""
        self._change(incarnation=_fresh())

    def take_number(self, number: int) -> None:
        """Store the replica's number durably. Raises `UsageError` if the folder already has another number."""
        if self.number not in (None, number):
            raise UsageError(
                f"{self._path.parent} is the data folder of replica {self.number}, and replicaId (--replica) is"
                f" {number}: leave the option out, or give replica {number} a folder of its own"
            )
        self._change(number=number)

    def _read(self) -> _Content | None:
        try:
            text = read_checked(self._disk, self._path)
            return None if text is None else msgspec.json.decode(text, type=_Content)
        except (StoreCorrupt, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreCorrupt(
                f"{self._path} cannot be read ({error}): delete it; the replica then copies everything from its master"
            ) from error

    def _change(self, **changes: int) -> None:
        content = msgspec.structs.replace(self._content, **changes)
        if content != self._content:
            try:
                replace_checked(self._disk, self._path, msgspec.json.encode(content))
            except OSError as error:
                advice = disk_advice(error, "start the broker again")
                raise StoreNotWritable(f"cannot write {self._path}: {advice}") from error
        self._content = content


def _fresh() -> int:
    return 1 + secrets.randbelow(_LARGEST_INCARNATION)
