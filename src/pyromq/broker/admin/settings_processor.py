"""Answers administrators' requests to read and change the broker's settings. Changes survive a restart.

Changes are saved in a file of the broker in its data folder, which overrides the user's configuration. The user's own
files are never written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from pyromq.broker.config import SETTINGS, BrokerConfig, ConfiguredRole, java_properties, with_properties
from pyromq.errors import BrokerError, NoPermission, StoreCorrupt, UsageError
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of
from pyromq.names import TRACE_TOPIC
from pyromq.remoting.bodies import DataVersion
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import BrokerSettings, BrokerSettingsResponse, SaveBrokerSettings
from pyromq.remoting.properties import parse_properties, write_properties
from pyromq.server_settings import Change
from pyromq.store.json_file import JsonFile
from pyromq.store.table_file import TableFile, has_failed, when_saved

if TYPE_CHECKING:
    from pyromq.broker.shared_state import SharedState

logger = logger_of(__name__)

# Sent with the settings, though this broker has no such settings: Java's exportConfigs and exportMetrics read them.
_FIXED_HERE = {
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),  # upstream's default; exportMetrics shows it as cpuNum
    "enableDetailStat": "false",  # this broker counts by topic and group, not by queue
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "traceOn": "true",
}
_HEADING = "# Changed while the broker ran, by request 25; outranks what it is started with.\n"
MOST_SETTINGS_BYTES = 64 << 10  # limit of a request's body; all settings together have 4 kB
_MOST_CHARACTERS = 1000  # limit of a setting's value; the list of 18 delay levels has 60
_NEVER = {name for name, setting in SETTINGS.items() if setting.change is Change.NEVER}
BLACK_LIST = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


class SettingsProcessor:
    """Reads and changes settings under RocketMQ's names.

    Changes are saved in the file that `load_changes` reads at the start.
    """

    def __init__(self, state: SharedState) -> None:
        self._config = state.config
        self._file = state.settings
        self._unkept: dict[str, str] = {}  # changes that may not be on disk yet
        self._is_all = False  # whether the file must have nothing but `_unkept`: they are all changes of a master
        self._kept: Future[None] | None = None  # completes when `_unkept` is on disk
        self._saves = 0
        self._next_start: dict[str, str] = {}  # changes that take effect at the next start
        self._saving = TableFile(state.settings, partial(_merged, state.settings))
        self._topics = state.topics
        self._confirmation = state.confirmation
        self._announce_all = state.registering.announce_all
        self._clock = state.clock
        self.version = DataVersion(timestamp=state.clock.now_ms(), counter=0)

    @answers(BrokerSettings)
    def settings(self, header: BrokerSettings, call: Call) -> Reply:
        version = msgspec.json.encode({"counter": self.version.counter, "timestamp": self.version.timestamp})
        # TLS of the connections to name servers.
        uses_tls = "true" if self._config.connections.tls is not None else "false"
        role = {"brokerRole": ConfiguredRole.ASYNC_MASTER.name}  # upstream's default
        body = write_properties(role | java_properties(self._config) | _FIXED_HERE | {"useTLS": uses_tls})
        next_start = msgspec.json.encode(self._next_start).decode()
        return Reply(BrokerSettingsResponse(version=version.decode(), next_start=next_start), body.encode())

    @answers(SaveBrokerSettings)
    def save(self, header: SaveBrokerSettings, call: Call) -> Future[Reply]:
        """Change settings, all or none; reply when the changes are on disk.

        Settings that can change while the broker runs take effect now, others at the next start. Unlike upstream,
        unknown names are refused and not silently kept.
        """
        changes = _parsed(call.body)
        _check_changeable(changes)
        before = self._config.permission
        try:
            wanted = with_properties(self._config, changes)
        except UsageError as error:
            raise BrokerError(str(error)) from error
        self._config.change(wanted)
        self._note_next_start(changes, java_properties(wanted))
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        kept = self._keep(changes)
        logger.info("settings changed by %s: %s", call.peer.address, ", ".join(f"{k}={v}" for k, v in changes.items()))
        if self._config.permission != before:
            self._topics.touch()
            self._announce_all()
        return when_saved(self._confirmation.when_kept(kept), Reply())

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
        changes = {name: text for name, text in copied.changes.items() if name in SETTINGS and name not in _NEVER}
        before = self._config.permission
        try:
            wanted = with_properties(self._config, changes)
        except UsageError as error:
            logger.error("the settings of the master do not fit here and take no effect: %s", error)  # noqa: TRY400
        else:
            self._config.change(wanted)
            self._note_next_start(changes, java_properties(wanted))
            if self._config.permission != before:
                self._announce_all()
        return self._keep(copied.changes, is_all=True)

    def _note_next_start(self, changes: Iterable[str], wanted: dict[str, str]) -> None:
        now = java_properties(self._config)
        for name in changes:
            self._next_start.pop(name, None)
            if wanted.get(name) != now.get(name):
                self._next_start[name] = wanted.get(name, "")

    def _keep(self, changes: dict[str, str], *, is_all: bool = False) -> Future[None]:
        if is_all or (self._kept is not None and self._kept.done() and self._kept.exception() is None):
            self._unkept, self._is_all = {}, is_all
        self._unkept = self._unkept | changes
        self._saves += 1
        self._kept = self._saving.save(lambda: (self._unkept, self._is_all), order=self._saves)
        return self._kept

    def close(self) -> None:
        """Block until all changes are on disk, or have failed."""
        self._saving.close()


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
    """Return `config` with the administrators' saved changes, which override what the broker was started with."""
    changes = {name: text for name, text in _kept(file).items() if name not in _NEVER}
    if not changes:
        return config
    texts = ", ".join(f"{name}={text}" for name, text in sorted(changes.items()))
    logger.info("settings changed by administrators, from %s: %s", file.path, texts)
    return with_properties(config, changes)


def _parsed(body: bytes) -> dict[str, str]:
    if len(body) > MOST_SETTINGS_BYTES:
        raise BrokerError(f"the settings have {len(body)} bytes; the limit is {MOST_SETTINGS_BYTES}")
    try:
        return parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise BrokerError(f"string2Properties error: the settings are not UTF-8: {error}") from error


def _check_changeable(changes: dict[str, str]) -> None:
    """Raise the error that refuses unknown or unchangeable settings, and values that are not one printable line."""
    for name, text in changes.items():
        if name in BLACK_LIST:
            raise NoPermission("Can not update config in black list.")
        if name in _NEVER:
            raise NoPermission(f"setting {name} cannot be changed while the broker runs")
        if name not in SETTINGS:
            raise BrokerError(f"setting '{excerpt(name)}' is unknown to this broker")
        if len(text) > _MOST_CHARACTERS or not text.isprintable():
            raise BrokerError(
                f"setting {name} is '{excerpt(text, 80)}'; write up to {_MOST_CHARACTERS} printable characters"
            )
