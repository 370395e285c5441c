"""Answers operators that read and change the name server's own settings while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from pyromq.errors import BrokerError, NoPermission, UsageError
from pyromq.excerpt import excerpt
from pyromq.nameserver.config import BLACK_LIST, JAVA_NAMES, LIVE, NameServerConfig
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import NamesrvSettings, SaveNamesrvSettings
from pyromq.remoting.properties import parse_properties, write_properties
from pyromq.store.json_file import JsonFile

_MOST_BYTES = 64 << 10  # of a request: all settings there are have 1 kB


class ConfiguringNameServer:
    """The settings, by the names of RocketMQ's configuration files.

    `file` keeps changes over a restart; None: nothing does.
    """

    def __init__(self, config: NameServerConfig, file: JsonFile | None) -> None:
        self._config = config
        self._file = file

    def load(self) -> None:
        """Apply what was changed by request: that outranks what the server is started with. Raises `StoreError`."""
        content = self._file.load() if self._file is not None else None
        if content is not None:
            self._apply(parse_properties(content.decode()))

    @answers(SaveNamesrvSettings)
    def save_settings(self, header: SaveNamesrvSettings, call: Call) -> Reply:
        """Change what may change while the server runs; settings without meaning here are ignored, as upstream."""
        if len(call.body) > _MOST_BYTES:
            raise BrokerError(f"the settings have {len(call.body)} bytes; the limit is {_MOST_BYTES}")
        try:
            settings = parse_properties(call.body.decode())
        except UnicodeDecodeError as error:
            raise BrokerError(f"string2Properties error: the settings are not UTF-8: {error}") from error
        if BLACK_LIST & settings.keys():
            raise NoPermission("Can not update config in black list.")
        if fixed := (JAVA_NAMES.keys() - LIVE) & settings.keys():
            raise UsageError(f"{', '.join(sorted(fixed))}: cannot change while the name server runs; restart it")
        changed = {name: settings[name] for name in LIVE & settings.keys()}
        for name, text in changed.items():
            if text.strip().lower() not in ("true", "false"):
                raise UsageError(f"{name} is '{excerpt(text)}'; write true or false")
        if changed and self._file is not None:
            self._file.save(write_properties(changed).encode())
        self._apply(changed)
        return Reply()

    def _apply(self, settings: Mapping[str, str]) -> None:
        if "orderMessageEnable" in settings:
            self._config.order_message_enabled = settings["orderMessageEnable"].strip().lower() == "true"

    @answers(NamesrvSettings)
    def settings(self, header: NamesrvSettings, call: Call) -> Reply:
        values = {name: attrgetter(field)(self._config) for name, field in JAVA_NAMES.items()}
        texts = {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in values.items() if v is not None}
        return Reply(body=write_properties(texts).encode())
