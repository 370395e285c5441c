"""Receives the tables of the master at a follower. No sockets here.

While a received table that must be confirmed is not on disk, the follower sends no reports. So a report also confirms
all table changes that the master sent before the reported records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from pyromq.broker.replicated_table import ReplicatedTable
from pyromq.broker.replication.replica_stream import TablePiece, TableStored
from pyromq.errors import ProtocolError
from pyromq.net.tasks import soon_in_this_loop

# Limit of one table's JSON: 300,000 topics. A damaged stream must not fill the memory.
MAX_TABLE_BYTES = 64 << 20


class ReceivedTables:
    """Receives tables at one follower.

    `stored(message)` is called when a table is on disk, `failed(error)` when it could not be written.
    """

    def __init__(
        self,
        tables: Sequence[ReplicatedTable],
        *,
        stored: Callable[[TableStored], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._tables = {table.name: table for table in tables}
        self._stored = stored
        self._failed = failed
        self._pieces: dict[str, bytearray] = {}
        self._waiting: deque[tuple[ReplicatedTable, int, bytes]] = deque()  # table, stamp, JSON
        self._saving: set[Future[None]] = set()
        self._run_soon = soon_in_this_loop()

    @property
    def is_saving(self) -> bool:
        """Whether a table that must be confirmed is not on disk yet."""
        return bool(self._saving)

    def begin(self) -> None:
        """Drop incomplete and waiting tables of the former master. Must be called when the master changes."""
        self._pieces.clear()
        self._waiting.clear()
        self._saving.clear()

    def take(self, piece: TablePiece) -> None:
        """Add a piece to its table, and adopt the complete table. Raises `MQError` if the table cannot be read.

        Ignores a table that this broker does not have, for example accounts while permissions are off.
        """
        whole = self._pieces.setdefault(piece.name, bytearray())
        whole += piece.data
        if len(whole) > MAX_TABLE_BYTES:
            raise ProtocolError(f"table {piece.name} of the master has more than {MAX_TABLE_BYTES} bytes")
        if not piece.is_last:
            return
        data = bytes(self._pieces.pop(piece.name))
        table = self._tables.get(piece.name)
        if table is not None and table.waits_for_log:
            self._waiting.append((table, piece.stamp, data))
            return
        saved = None if table is None else table.adopt(data)
        stored = TableStored(piece.name, piece.version)
        if saved is None:
            self._stored(stored)
        else:
            self._saving.add(saved)
            saved.add_done_callback(lambda saved: self._run_soon(partial(self._end_saving, saved, stored)))

    def _end_saving(self, saved: Future[None], stored: TableStored) -> None:
        if saved not in self._saving:  # the table came from a former master
            return
        error = saved.exception()
        if isinstance(error, Exception):
            self._failed(error)
        else:
            self._saving.discard(saved)
            self._stored(stored)

    def log_reached(self, end: int) -> None:
        """Adopt the tables that were copied when the master's log ended before or at `end`. Raises `MQError`."""
        while self._waiting and self._waiting[0][1] <= end:
            table, _, data = self._waiting.popleft()
            table.adopt(data)
