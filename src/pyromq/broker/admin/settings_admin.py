"""Answers administrators' questions for the broker's settings, and their changes; keeps those over a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from pyromq.broker.config import FIXED, JAVA_NAMES, BrokerConfig, java_properties, with_properties
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.errors import BrokerError, NoPermission, UsageError
from pyromq.names import TRACE_TOPIC
from pyromq.remoting.bodies import DataVersion
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import BrokerSettings, BrokerSettingsResponse, SaveBrokerSettings
from pyromq.remoting.properties import parse_properties, write_properties
from pyromq.store.json_file import JsonFile

logger = logging.getLogger(__name__)

# No settings here, but what Java's tools (exportConfigs) fail without.
_FIXED_HERE = {
    "brokerRole": "ASYNC_MASTER",
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "slaveReadEnable": "false",
    "traceOn": "true",
    "useTLS": "false",
}
BLACK_LIST = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


class Configuring:
    """The settings under RocketMQ's names. `file` holds those that were changed; `load` applies them at start."""

    def __init__(
        self,
        config: BrokerConfig,
        file: JsonFile,
        *,
        topics: Topics,
        announce_all: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._config = config
        self._file = file
        self._topics = topics
        self._announce_all = announce_all
        self._clock = clock
        self._version = DataVersion(timestamp=clock.now_ms(), counter=0)

    @answers(BrokerSettings)
    def settings(self, header: BrokerSettings, call: Call) -> Reply:
        version = msgspec.json.encode({"counter": self._version.counter, "timestamp": self._version.timestamp})
        body = write_properties(java_properties(self._config) | _FIXED_HERE)
        return Reply(BrokerSettingsResponse(version=version.decode()), body.encode())

    @answers(SaveBrokerSettings)
    def save(self, header: SaveBrokerSettings, call: Call) -> Reply:
        """Change settings: those that can be changed while running at once, the others from the next start on.

        All or nothing. Unlike upstream, names that mean nothing here are refused, not kept in silence.
        """
        try:
            changes = parse_properties(call.body.decode())
        except UnicodeDecodeError as error:
            raise BrokerError(f"string2Properties error: the settings are not UTF-8: {error}") from error
        _check_changeable(changes)
        before = self._config.permission
        try:
            self._config.change(with_properties(self._config, changes))
        except UsageError as error:
            raise BrokerError(str(error)) from error
        self._keep(changes)
        self._version = DataVersion(timestamp=self._clock.now_ms(), counter=self._version.counter + 1)
        logger.info("settings changed by %s: %s", call.peer.address, ", ".join(f"{k}={v}" for k, v in changes.items()))
        if self._config.permission != before:
            self._topics.touch()
            self._announce_all()
        return Reply()

    def _keep(self, changes: dict[str, str]) -> None:
        kept = self._file.load() or b""
        self._file.save(merge_properties(kept.decode(), changes).encode())


def load_changes(config: BrokerConfig, file: JsonFile) -> BrokerConfig:
    """Return `config` as administrators have changed it, which outranks what the broker was started with."""
    content = file.load()
    if content is None:
        return config
    changes = {name: text for name, text in parse_properties(content.decode()).items() if name not in FIXED}
    logger.info("settings changed by administrators: %s", ", ".join(f"{k}={v}" for k, v in sorted(changes.items())))
    return with_properties(config, changes)


def merge_properties(text: str, changes: dict[str, str]) -> str:
    """Return the text with the changed values in place of the old ones, new names at the end; comments stay."""
    left = dict(changes)
    lines = []
    for line in text.splitlines():
        name = next(iter(parse_properties(line)), None)
        if name not in changes:
            lines.append(line)
        elif name in left:
            lines.append(f"{name}={left.pop(name)}")
    return "".join(f"{line}\n" for line in lines) + write_properties(left)


def _check_changeable(changes: dict[str, str]) -> None:
    for name in changes:
        if name in BLACK_LIST:
            raise NoPermission("Can not update config in black list.")
        if name in FIXED:
            raise NoPermission(f"setting {name} cannot be changed while the broker runs")
        if name not in JAVA_NAMES:
            raise BrokerError(f"setting {name!r} is unknown to this broker")
