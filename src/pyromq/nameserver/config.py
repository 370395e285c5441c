"""Settings of a name server. Reads no files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyromq.errors import UsageError
from pyromq.net.connection_config import PLAIN, ConnectionConfig


@dataclass(slots=True)
class NameServerConfig:
    """Settings of one name server."""

    host: str = "127.0.0.1"  # loopback, because there is no access control by default
    port: int = 9876  # 0: any free one
    kv_path: Path | None = None  # file of the key-value settings; None: in memory only
    broker_timeout_ms: int = 120_000  # a broker that is silent for longer is gone
    scan_interval_ms: int = 5_000
    order_message_enabled: bool = False  # tell clients the fixed queue order of order topics
    connections: ConnectionConfig = PLAIN  # TLS and hooks around calls

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"name server setting {name} is {value!r}; it must be {least} to {most}")


_RANGES = {
    "port": (0, 65535),
    "broker_timeout_ms": (1_000, 86_400_000),
    "scan_interval_ms": (100, 600_000),
}

# RocketMQ's property name -> field of NameServerConfig.
JAVA_NAMES = {
    "bindAddress": "host",
    "listenPort": "port",
    "kvConfigPath": "kv_path",
    "scanNotActiveBrokerInterval": "scan_interval_ms",
    "orderMessageEnable": "order_message_enabled",
}
LIVE = frozenset({"orderMessageEnable"})  # may be changed by request while the server runs
BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})  # upstream's: refused with 16
