"""Settings of a name server. Reads no files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyromq.errors import UsageError
from pyromq.nameserver.routes import MOST_BROKERS, MOST_TOPICS
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.server import ServerTlsConfig
from pyromq.remoting.connection_limits import CONNECTION_LIMIT_NAMES, DEFAULT_CONNECTION_LIMITS, ConnectionLimits


@dataclass(slots=True)
class NameServerConfig:
    """Settings of one name server."""

    host: str = "127.0.0.1"  # loopback, because there is no access control by default
    port: int = 9876  # 0: any free one
    kv_path: Path | None = None  # file of the key-value settings; None: in memory only
    broker_timeout_ms: int = 120_000  # a broker that is silent for longer is gone
    scan_interval_ms: int = 5_000  # how often it looks for silent brokers
    order_message_enabled: bool = False  # tell clients the fixed queue order of order topics
    max_topics: int = MOST_TOPICS  # registered, each counted at each of its brokers; some 400 bytes each
    max_brokers: int = MOST_BROKERS  # registered at a time, by address
    max_kv_bytes: int = 4 << 20  # of key-value settings; they are written whole after each change
    connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS  # of what connections may make it keep and do
    permissions_path: Path | None = None  # folder of plain_acl.yml and acl/: changes want an account; None: nobody does
    tls: ServerTlsConfig | None = None  # None: plain
    connections: ConnectionConfig = PLAIN  # hooks around calls

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"name server setting {name} is {value!r}; it must be {least} to {most}")


_RANGES = {
    "port": (0, 65535),
    "broker_timeout_ms": (1_000, 86_400_000),
    "scan_interval_ms": (100, 600_000),
    "max_topics": (1, 1 << 31),
    "max_brokers": (1, 1 << 31),
    "max_kv_bytes": (1, 1 << 31),
}

# RocketMQ's property name -> field of NameServerConfig; `connection_limits.` before those of ConnectionLimits, ours.
JAVA_NAMES = {
    "bindAddress": "host",
    "listenPort": "port",
    "kvConfigPath": "kv_path",
    "scanNotActiveBrokerInterval": "scan_interval_ms",
    "orderMessageEnable": "order_message_enabled",
    "maxRegisteredTopics": "max_topics",
    "maxRegisteredBrokers": "max_brokers",
    "maxKvConfigBytes": "max_kv_bytes",
    "namesrvAclPath": "permissions_path",
    **{name: f"connection_limits.{field}" for name, field in CONNECTION_LIMIT_NAMES.items()},
}
LIVE = frozenset({"orderMessageEnable"})  # may be changed by request while the server runs
BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})  # upstream's: refused with 16
