"""Exchanges the tables of one broker with the other replicas of its set, as master or as follower."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from pyromq.broker.replication.replica_actions import Actions, Link
from pyromq.broker.replication.replica_stream import TablePiece, TableStored
from pyromq.broker.replication.tables.received_tables import ReceivedTables
from pyromq.broker.replication.tables.sent_tables import SentTables
from pyromq.errors import MQError

if TYPE_CHECKING:
    from pyromq.broker.broker import Broker
    from pyromq.broker.replication.replica import Replica
    from pyromq.broker.replication.replica_links import ReplicaLinks


class TableExchange:
    """The tables of one broker in a set. `do` carries out actions of `Replica`; `report` sends waiting reports."""

    def __init__(
        self,
        broker: Broker,
        replica: Replica,
        links: ReplicaLinks,
        *,
        do: Callable[[Actions], None],
        report: Callable[[], None],
        timeout_seconds: float,
    ) -> None:
        self._store = broker.store
        self._replica = replica
        self._links = links
        self._do = do
        self._report = report
        self.sent = SentTables(
            broker.replicated_tables,
            holders=lambda: replica.table_holders(links.now()),
            wake=links.wake,
            now=links.now,
            timeout_seconds=timeout_seconds,
        )
        self.taken = ReceivedTables(broker.replicated_tables, stored=self._stored, failed=self._failed)

    def received(self, link: Link, message: TablePiece | TableStored) -> None:
        """Process a message about tables from another replica. Pieces of tables count only from the followed master."""
        following = self._replica.following
        if isinstance(message, TableStored):
            if not link.is_ours:
                self.sent.stored(link.number, message)
        elif link.is_ours and following is not None and following[0] == link.number:
            try:
                self.taken.take(message)
            except (MQError, msgspec.DecodeError) as error:
                self._failed(error)

    def log_grew(self) -> None:
        """Adopt received tables up to the confirmed end of the log here: their offsets refer to these records."""
        try:
            self.taken.log_reached(self._store.confirmed_end)
        except (MQError, msgspec.DecodeError) as error:
            self._failed(error)

    def _stored(self, message: TableStored) -> None:
        if (following := self._replica.following) is not None:
            self._links.send(Link(following[0], True), message)
        self._report()

    def _failed(self, error: Exception) -> None:
        """Stop following for a while, as after a failed write to the log. The next link transfers all tables again."""
        self._do(self._replica.disk_failed(self._links.now(), f"a table of the master is not stored: {error}"))
