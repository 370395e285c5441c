"""RocketMQ's properties files (`key=value` lines) as settings of our servers.

Keys that 4.9.8 knows and that have no meaning here (thread counts, off-heap pools) are named in one warning; keys
nobody knows are an error, since a mistyped setting that is silently ignored is worse than a refused start.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyromq.broker.config import JAVA_NAMES, from_java
from pyromq.errors import UsageError

logger = logging.getLogger(__name__)

_NAMESRV_NAMES = {"listenPort": "port", "kvConfigPath": "kv_path", "orderMessageEnable": "order_message_enabled"}
# Prefixes of upstream's tuning of threads, queues and memory, which one event loop does not have.
_WITHOUT_MEANING = ("server", "client", "use", "warm", "transient", "thread", "rocketmqHome", "fastFail", "debug")


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a properties file. Raises `UsageError` naming file and line."""
    settings = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, separator, value = text.partition("=")
        if not separator:
            key, separator, value = text.partition(":")
        if not separator:
            raise UsageError(f"{path}, line {number}: {text!r} is not of the form key=value")
        settings[key.strip()] = value.strip()
    return settings


def broker_settings(properties: Mapping[str, str], *, data: Path, source: str) -> dict[str, Any]:
    """Return `BrokerConfig` fields of a broker's properties."""
    ignored = [key for key in properties if key not in JAVA_NAMES and key.startswith(_WITHOUT_MEANING)]
    for key in properties:
        if key not in JAVA_NAMES and key not in ignored and key not in _NAMESRV_NAMES:
            near = difflib.get_close_matches(key, JAVA_NAMES, n=1)
            raise UsageError(f"{source}: setting {key!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else ""))
    if ignored:
        logger.warning("%s: without meaning here: %s", source, ", ".join(sorted(ignored)))
    return from_java({key: value for key, value in properties.items() if key in JAVA_NAMES}, data=data)


def namesrv_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return `NameServerConfig` fields of a name server's properties; a broker's settings are passed over."""
    settings: dict[str, Any] = {}
    for key, field in _NAMESRV_NAMES.items():
        if key in properties and not ("brokerName" in properties and key == "listenPort"):
            value = properties[key]
            settings[field] = int(value) if field == "port" else Path(value) if field == "kv_path" else value == "true"
    return settings
