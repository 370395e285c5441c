"""The settings of a name server. Reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyromq.errors import UsageError
from pyromq.nameserver.routes import MAX_BROKERS, MAX_TOPICS
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.remoting.connection_limits import DEFAULT_CONNECTION_LIMITS, ConnectionLimits
from pyromq.server_settings import Change, check_ranges, parse_path, read_settings, setting, settings_by_name

_COUNT = (1, 1 << 31)


@dataclass(slots=True)
class NameServerConfig:
    """The settings of one name server."""

    # Address to listen at: loopback, as there is no access control by default.
    host: str = setting("127.0.0.1", "bindAddress")
    port: int = setting(9876, "listenPort", range=(0, 65535))  # port of clients and brokers; 0: any free port
    # File of the key-value settings; None: in memory only.
    kv_path: Path | None = setting(None, "kvConfigPath", read=parse_path)
    # A broker without a heartbeat for this time is removed.
    broker_timeout_ms: int = setting(120_000, range=(1_000, 86_400_000))
    # Time between two searches for brokers without heartbeats.
    scan_interval_ms: int = setting(5_000, "scanNotActiveBrokerInterval", range=(100, 600_000))
    # Send clients the fixed queue order of order topics.
    order_message_enabled: bool = setting(False, "orderMessageEnable", change=Change.AT_ONCE)
    # Limit of registered topics, each counted at each of its brokers; a topic takes about 400 bytes.
    max_topics: int = setting(MAX_TOPICS, "maxRegisteredTopics", range=_COUNT)
    max_brokers: int = setting(MAX_BROKERS, "maxRegisteredBrokers", range=_COUNT)  # limit of broker addresses
    # Limit of all key-value settings, which are written as a whole after each change.
    max_kv_bytes: int = setting(4 << 20, "maxKvConfigBytes", range=_COUNT)
    connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS  # limits of memory and work that connections cause
    # Folder of plain_acl.yml and acl/: changes then need an account. None: no accounts.
    permissions_path: Path | None = setting(None, "namesrvAclPath", read=parse_path)
    tls: ServerTlsConfig | None = None  # None: connections without TLS
    connections: ConnectionConfig = PLAIN  # hooks that are called around each request

    def __post_init__(self) -> None:
        check_ranges(self, "name server setting ")


SETTINGS = settings_by_name(NameServerConfig, connection_limits=ConnectionLimits)
# Settings that RocketMQ refuses to change, with code 16.
BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})


def from_java(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `NameServerConfig` that properties set; names not in `SETTINGS` are skipped.

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
