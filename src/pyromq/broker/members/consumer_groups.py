"""The consumer groups of one broker: their settings, built-in groups, automatic creation, and the table on disk.

Source: RocketMQ 4.9.8, SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

from pyromq.broker.config import BrokerConfig
from pyromq.broker.role import BrokerRole
from pyromq.clock import Clock
from pyromq.errors import IllegalName, LimitReached
from pyromq.names import TOOLS_GROUP, check_group, is_system_group
from pyromq.quota import Quota
from pyromq.remoting.bodies import FILE, DataVersion, GroupConfig, GroupConfigTable, decode_body
from pyromq.remoting.codes import MAX_RECONSUME_VERSION
from pyromq.remoting.command import Call
from pyromq.remoting.dispatch import Peer
from pyromq.remoting.headers import SendMessage, SendMessageBack
from pyromq.store.json_file import JsonFile
from pyromq.store.table_file import RunSoon, TableFile, at_once, formatted, has_failed

BUILT_IN_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
MORE_SYSTEM_GROUPS = 100  # limit of system groups beyond `maxGroups`: RocketMQ has ten


class ConsumerGroups:
    """The table group -> settings. Each change gets a new data version and is saved by a thread.

    Only a master creates groups automatically. Such groups are saved later, by `unsaved`: after a crash they would be
    created again.
    """

    def __init__(
        self,
        config: BrokerConfig,
        file: JsonFile,
        clock: Clock,
        run_soon: RunSoon = at_once,
        *,
        role: BrokerRole | None = None,
    ) -> None:
        self._role = role or BrokerRole()
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0)
        self._count = 0  # number of changes: the version's counter falls if a slave copies another table
        self._config = config
        self._file = file
        self._changes = TableFile(file, _encoded, run_soon)
        self.close = self._changes.close  # blocks until all changes are on disk, or have failed
        self._clock = clock
        self._is_saved = True
        self._adopted: Future[None] | None = None  # the save of the last copy of a master's table
        self._creations = Quota[Peer]("maxGroups", config.limits.groups)
        self._table = {name: GroupConfig(name=name) for name in BUILT_IN_GROUPS}

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(self._table.values())

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def load(self) -> None:
        """Read the table of groups from disk; its groups replace built-in ones.

        Raises `StoreCorrupt` naming the file.
        """
        stored = self._file.read(partial(decode_body, GroupConfigTable, bounds=FILE))
        if stored is not None:
            self._table.update(stored.groups)
            self.version = stored.data_version

    def persist(self) -> None:
        """Write the table to disk now. Blocks. Raises `StoreNotWritable`."""
        self._saving()()

    def unsaved(self) -> Callable[[], None] | None:
        """Return a function that saves the present table, in any thread; None if the table is on disk."""
        return None if self._is_saved else self._saving()

    def _saving(self) -> Callable[[], None]:
        self._is_saved = True
        return self._file.saving(partial(_encoded, self.table()), failed=self._lost, order=self._count)

    def _lost(self) -> None:
        self._is_saved = False

    def table(self) -> GroupConfigTable:
        """Return all settings with their data version, in the form of the reply to request 201."""
        return GroupConfigTable(data_version=self.version, groups=dict(self._table))

    def find(self, name: str, peer: Peer | None = None) -> GroupConfig | None:
        """Return the group's settings; None for an unknown group that is not created.

        With a `peer`, an unknown group is created, if that is enabled and the name is legal. Raises `LimitReached` if
        there are too many groups, or the peer exceeds its share of created groups.
        """
        group = self._table.get(name)
        if group is None and peer is not None and self._may_create(name):
            try:
                check_group(name)
            except IllegalName:
                return None
            self._check_room(name)
            if not (created := self._creations.of(peer)):
                peer.on_close += (self._creations.end,)
            text = f"this connection created {created} groups, the limit of one connection; create fewer"
            self._creations.acquire(peer, text=text, free=self._config.limits.groups - len(self._table))
            group = self._table[name] = GroupConfig(name=name)
            self._renew()
        return group

    def _may_create(self, name: str) -> bool:
        return self._role.is_master and (self._config.auto_create_group or is_system_group(name))

    def put(self, group: GroupConfig) -> Future[None]:
        """Create the group or replace its settings; the returned future completes when the change is on disk.

        Raises `IllegalName`, `LimitReached`.
        """
        check_group(group.name)
        if group.name not in self._table:
            self._check_room(group.name)
        self._table[group.name] = group
        return self._changed()

    def delete(self, name: str, *, after: Callable[[], None] | None = None) -> Future[None] | None:
        """Delete the group. Return None for an unknown group without `after`.

        The returned future completes when the deletion is on disk and `after` was called, or when either failed.
        `after` runs in a thread and may raise `StoreError`.
        """
        if self._table.pop(name, None) is not None:
            self._renew()
        elif after is None:
            return None
        return self._save(after=after)

    def undo(self, name: str, before: GroupConfig | None, *, refused: GroupConfig | None) -> None:
        """Restore a group's settings from before a change that cannot be saved; None: there is no group.

        A group that was changed again since is left as it is.
        """
        if self._table.get(name) is not refused:
            return
        if before is None:
            self._table.pop(name, None)
        else:
            self._table[name] = before
        self._renew()

    def adopt(self, table: GroupConfigTable) -> Future[None] | None:
        """Replace the whole table by a copy of the master's, with its data version.

        The returned future completes when the copy is on disk. Return None if this version is on disk already.
        """
        if table.data_version == self.version and (self._adopted is None or not has_failed(self._adopted)):
            return self._adopted
        self._table = dict(table.groups)
        self._count += 1
        self.version = table.data_version
        self._adopted = self._save()
        return self._adopted

    def _check_room(self, name: str) -> None:
        most = self._config.limits.groups
        if len(self._table) >= most + MORE_SYSTEM_GROUPS * is_system_group(name):
            text = f"group [{name}] is not created: this broker has {len(self._table)} groups; delete some"
            raise LimitReached("maxGroups", most, text)

    def _changed(self) -> Future[None]:
        self._renew()
        return self._save()

    def _save(self, *, after: Callable[[], None] | None = None) -> Future[None]:
        self._is_saved = True
        saved = self._changes.save(self.table, order=self._count, after=after)
        saved.add_done_callback(lambda saved: self._lost() if saved.exception() else None)
        return saved

    def _renew(self) -> None:
        self._count += 1
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        self._is_saved = False


def _encoded(table: GroupConfigTable) -> bytes:
    return formatted(GroupConfigTable(data_version=table.data_version), table.groups)


def max_tries(group: GroupConfig, header: SendMessage | SendMessageBack, call: Call) -> int:
    """Return the number of attempts after which a message becomes a dead letter.

    The consumer's value applies, otherwise the group's setting.
    """
    if call.version >= MAX_RECONSUME_VERSION and header.max_reconsume_times is not None:
        return header.max_reconsume_times
    return group.retry_max_times
