"""Settings of a name server. Reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyromq.errors import UsageError
from pyromq.nameserver.routes import MOST_BROKERS, MOST_TOPICS
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.remoting.connection_limits import DEFAULT_CONNECTION_LIMITS, ConnectionLimits
from pyromq.server_settings import Change, check_ranges, parse_path, read_settings, setting, settings_by_name

_COUNT = (1, 1 << 31)


@dataclass(slots=True)
class NameServerConfig:
    """Settings of one name server."""

    host: str = setting("127.0.0.1", "bindAddress")  # loopback, because there is no access control by default
    port: int = setting(9876, "listenPort", range=(0, 65535))  # 0: any free one
    # File of the key-value settings; None: in memory only.
    kv_path: Path | None = setting(None, "kvConfigPath", read=parse_path)
    # A broker that is silent for longer is removed.
    broker_timeout_ms: int = setting(120_000, range=(1_000, 86_400_000))
    # Time between two searches for silent brokers.
    scan_interval_ms: int = setting(5_000, "scanNotActiveBrokerInterval", range=(100, 600_000))
    # Send clients the fixed queue order of order topics.
    order_message_enabled: bool = setting(False, "orderMessageEnable", change=Change.AT_ONCE)
    # Registered, each counted at each of its brokers; some 400 bytes each.
    max_topics: int = setting(MOST_TOPICS, "maxRegisteredTopics", range=_COUNT)
    max_brokers: int = setting(MOST_BROKERS, "maxRegisteredBrokers", range=_COUNT)  # registered at a time, by address
    # Of key-value settings; they are written whole after each change.
    max_kv_bytes: int = setting(4 << 20, "maxKvConfigBytes", range=_COUNT)
    connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS  # limits of memory and work that connections cause
    # Folder of plain_acl.yml and acl/: changes then need an account. None: no accounts.
    permissions_path: Path | None = setting(None, "namesrvAclPath", read=parse_path)
    tls: ServerTlsConfig | None = None  # None: plain
    connections: ConnectionConfig = PLAIN  # hooks around calls

    def __post_init__(self) -> None:
        check_ranges(self, "name server setting ")


SETTINGS = settings_by_name(NameServerConfig, connection_limits=ConnectionLimits)
BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})  # upstream's: refused with 16


def from_java(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return fields of `NameServerConfig` from properties; names not in `SETTINGS` are skipped.

    Raises `UsageError` naming the property and the value that does not fit.
    """
    values = read_settings(SETTINGS, properties)
    own = values.get("", {})
    if limits := values.get("connection_limits"):
        try:
            own["connection_limits"] = ConnectionLimits(**limits)
        except UsageError as error:
            raise UsageError(f"name server setting {error}") from error
    return own
