"""Answers administrators' requests to read and change the broker's settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from pyromq.broker.changed_settings import FIXED
from pyromq.broker.config import SETTINGS, ConfiguredRole, java_properties
from pyromq.errors import BrokerError, NoPermission, UsageError
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of
from pyromq.names import TRACE_TOPIC
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import BrokerSettings, BrokerSettingsResponse, SaveBrokerSettings
from pyromq.remoting.properties import parse_properties, write_properties
from pyromq.slow_work import completed

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
MAX_SETTINGS_BYTES = 64 << 10  # limit of a request's body; all settings together have 4 kB
_MAX_CHARACTERS = 1000  # limit of a setting's value; the list of 18 delay levels has 60
BLACK_LIST = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


class SettingsProcessor:
    """Reads and changes settings under RocketMQ's names."""

    def __init__(self, state: SharedState) -> None:
        self._config = state.config
        self._changed = state.changed_settings
        self._topics = state.topics
        self._confirmation = state.confirmation

    @answers(BrokerSettings)
    def settings(self, header: BrokerSettings, call: Call) -> Reply:
        changed = self._changed
        version = msgspec.json.encode({"counter": changed.version.counter, "timestamp": changed.version.timestamp})
        # TLS of the connections to name servers.
        uses_tls = "true" if self._config.connections.tls is not None else "false"
        role = {"brokerRole": ConfiguredRole.ASYNC_MASTER.name}  # upstream's default
        body = write_properties(role | java_properties(self._config) | _FIXED_HERE | {"useTLS": uses_tls})
        next_start = msgspec.json.encode(changed.next_start).decode()
        return Reply(BrokerSettingsResponse(version=version.decode(), next_start=next_start), body.encode())

    @answers(SaveBrokerSettings)
    async def save(self, header: SaveBrokerSettings, call: Call) -> Reply:
        """Change settings, all or none; reply when the changes are on disk and in effect.

        Settings that can change while the broker runs take effect now, others at the next start. Unlike upstream,
        unknown names are refused and not silently kept.
        """
        changes = _parsed(call.body)
        _check_changeable(changes)
        before = self._config.permission
        try:
            saved = await self._changed.change(changes)
        except UsageError as error:
            raise BrokerError(str(error)) from error
        logger.info("settings changed by %s: %s", call.peer.address, ", ".join(f"{k}={v}" for k, v in changes.items()))
        if self._config.permission != before:
            self._topics.touch()
        await completed(self._confirmation.when_kept(saved))
        return Reply()


def _parsed(body: bytes) -> dict[str, str]:
    if len(body) > MAX_SETTINGS_BYTES:
        raise BrokerError(f"the settings have {len(body)} bytes; the limit is {MAX_SETTINGS_BYTES}")
    try:
        return parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise BrokerError(f"string2Properties error: the settings are not UTF-8: {error}") from error


def _check_changeable(changes: dict[str, str]) -> None:
    """Raise the error that refuses unknown or unchangeable settings, and values that are not one printable line."""
    for name, text in changes.items():
        if name in BLACK_LIST:
            raise NoPermission("Can not update config in black list.")
        if name in FIXED:
            raise NoPermission(f"setting {name} cannot be changed while the broker runs")
        if name not in SETTINGS:
            raise BrokerError(f"setting '{excerpt(name)}' is unknown to this broker")
        if len(text) > _MAX_CHARACTERS or not text.isprintable():
            raise BrokerError(
                f"setting {name} is '{excerpt(text, 80)}'; write up to {_MAX_CHARACTERS} printable characters"
            )
