"""The settings of a broker that administrators have changed. The changes survive a restart.

Changes are saved in a file of the broker in its data folder, which overrides the user's configuration. The user's own
files are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

import msgspec

from pyromq.broker.config import SETTINGS, BrokerConfig, java_properties, with_properties
from pyromq.clock import Clock
from pyromq.errors import StoreCorrupt, UsageError
from pyromq.logs import logger_of
from pyromq.remoting.bodies import DataVersion
from pyromq.remoting.properties import parse_properties, write_properties
from pyromq.server_settings import Change
from pyromq.slow_work import Turns
from pyromq.store.json_file import JsonFile
from pyromq.store.retention import Retention
from pyromq.store.table_file import TableFile, has_failed, saved_or_undone

logger = logger_of(__name__)

_HEADING = "# Changed while the broker ran, by request 25; overrides the settings given at the start.\n"
FIXED = {name for name, setting in SETTINGS.items() if setting.change is Change.NEVER}  # settings that never change


class ChangedSettings:
    """Changes `config`, and saves the changes in the file that `load_changes` reads at the start.

    `announce_all` is called when the broker's permission changes.
    """

    def __init__(
        self,
        config: BrokerConfig,
        file: JsonFile,
        clock: Clock,
        announce_all: Callable[[], None],
        *,
        retention: Retention,
    ) -> None:
        self._config = config
        self._file = file
        self._clock = clock
        self._announce_all = announce_all
        self._retention = retention
        self._unkept: dict[str, str] = {}  # changes that may not be on disk yet
        self._is_all = False  # whether the file must have nothing but `_unkept`: they are all changes of a master
        self._kept: Future[None] | None = None  # completes when `_unkept` is on disk
        self._saving = TableFile(file, partial(_merged, file))
        self._turns = Turns()
        self.close = self._saving.close  # blocks until all changes are on disk, or have failed
        self.next_start: dict[str, str] = {}  # changes that take effect at the next start
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0)

    async def change(self, changes: dict[str, str]) -> Future[None]:
        """Change settings, all or none; return the future of their save, which is done.

        Settings that can change while the broker runs take effect once they are on disk, others at the next start.
        Raises `UsageError`, and `StoreNotWritable` if nothing changes since the disk refuses the file.
        """
        return await self._turns.run(partial(self._change, changes))

    async def _change(self, changes: dict[str, str]) -> Future[None]:
        with_properties(self._config, changes)  # refuses invalid settings before they are saved
        before = self._unkept, self._is_all, self._kept
        saved = self._keep(changes)

        def undo() -> None:
            if self._kept is saved:
                self._unkept, self._is_all, self._kept = before

        await saved_or_undone(saved, undo)
        self._apply(changes)
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        return saved

    # -- replicas of a set

    def encode(self) -> bytes:
        """Return all changes that were made by requests, with their version, for `adopt`."""
        return msgspec.json.encode(_CopiedSettings(self.version.timestamp, self.version.counter, self._all_changes()))

    def _all_changes(self) -> dict[str, str]:
        return self._unkept if self._is_all else _kept(self._file) | self._unkept

    def adopt(self, data: bytes) -> Future[None] | None:
        """Replace the changes by the master's, and let those take effect that can.

        The future completes when they are on disk; None: they are already. Raises `msgspec.DecodeError`.
        """
        copied = msgspec.json.decode(data, type=_CopiedSettings)
        self.version = DataVersion(timestamp=copied.timestamp, counter=copied.counter)
        if copied.changes == self._all_changes() and (self._kept is None or not has_failed(self._kept)):
            return self._kept
        try:
            self._apply({name: text for name, text in copied.changes.items() if name in SETTINGS and name not in FIXED})
        except UsageError as error:
            logger.error("the master's settings are invalid here and take no effect: %s", error)  # noqa: TRY400
        return self._keep(copied.changes, is_all=True)

    def _apply(self, changes: dict[str, str]) -> None:
        before, wanted = self._config.permission, with_properties(self._config, changes)
        self._config.change(wanted)
        self._retention.config = self._config.store_config
        self._note_next_start(changes, java_properties(wanted))
        if self._config.permission != before:
            self._announce_all()

    def _note_next_start(self, changes: Iterable[str], wanted: dict[str, str]) -> None:
        now = java_properties(self._config)
        for name in changes:
            self.next_start.pop(name, None)
            if wanted.get(name) != now.get(name):
                self.next_start[name] = wanted.get(name, "")

    def _keep(self, changes: dict[str, str], *, is_all: bool = False) -> Future[None]:
        if is_all or (self._kept is not None and self._kept.done() and self._kept.exception() is None):
            self._unkept, self._is_all = {}, is_all
        self._unkept = self._unkept | changes
        self._kept = self._saving.save(lambda: (self._unkept, self._is_all))
        return self._kept


class _CopiedSettings(msgspec.Struct, frozen=True):
    """All changes of a master's settings, and their version."""

    timestamp: int
    counter: int
    changes: dict[str, str]


def _merged(file: JsonFile, saved: tuple[dict[str, str], bool]) -> bytes:
    """Return the new content of the file of settings: its present settings and these changes; or only these."""
    changes, is_all = saved
    present = {} if is_all else _kept(file)
    return (_HEADING + write_properties(dict(sorted((present | changes).items())))).encode()


def _kept(file: JsonFile) -> dict[str, str]:
    try:
        return parse_properties((file.load() or b"").decode())
    except UnicodeDecodeError as error:
        raise StoreCorrupt(f"{file.path} is not UTF-8: {error}") from error


def load_changes(config: BrokerConfig, file: JsonFile) -> BrokerConfig:
    """Return `config` with the administrators' saved changes, which override the settings given at the start."""
    changes = {name: text for name, text in _kept(file).items() if name not in FIXED}
    if not changes:
        return config
    texts = ", ".join(f"{name}={text}" for name, text in sorted(changes.items()))
    logger.info("settings changed by administrators, from %s: %s", file.path, texts)
    return with_properties(config, changes)
