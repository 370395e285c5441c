"""Settings of the HA connection between a master and its slaves."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from pyromq.errors import UsageError
from pyromq.server_settings import Change, check_ranges, parse_number, setting, settings_of

_NEXT = Change.NEXT_START
_TIME = (1, 3_600_000)


def _parse_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(",") if host.strip())
    for host in hosts:
        try:
            ip_address(host)
        except ValueError as error:
            raise ValueError("write IP addresses with commas between them") from error
    return hosts


@dataclass(frozen=True, slots=True)
class HaConfig:
    """The settings of both sides. Master and slave should have equal intervals."""

    # Port at which a master sends its log to slaves; None: `listenPort` + 1. RocketMQ ignores this setting.
    port: int | None = setting(None, "haListenPort", change=_NEXT, read=parse_number)
    # Time after its last bytes at which a master sends a heartbeat, and a slave a report.
    heartbeat_ms: int = setting(5_000, "haSendHeartbeatInterval", range=_TIME, change=_NEXT)
    # Time without bytes of the other side after which master and slave close the HA connection.
    housekeeping_ms: int = setting(20_000, "haHousekeepingInterval", range=_TIME, change=_NEXT)
    # Limit of a frame's bytes of the log. A RocketMQ slave never takes a frame of 4 MiB.
    batch_bytes: int = setting(32_768, "haTransferBatchSize", range=(1, 1 << 20), change=_NEXT)
    # Largest lag, in bytes, of the slave with the longest log at a synchronous master. Beyond it sends get code 11.
    fall_behind_bytes: int = setting(256 << 20, "haSlaveFallbehindMax", range=(1, 1 << 62), change=_NEXT)
    # Limit of a send's wait for a slave at a synchronous master. After this time the reply has code 12.
    slave_timeout_ms: int = setting(3_000, "slaveTimeout", range=_TIME, change=_NEXT)
    # IP addresses from which slaves may connect. Empty: those registered under the broker's name; all on loopback.
    # Not in RocketMQ.
    allowed_peers: tuple[str, ...] = setting((), "haAllowedPeers", change=_NEXT, read=_parse_hosts, write=",".join)
    # Whether a slave whose log ends before its master's first byte drops its data and begins again. Not in RocketMQ.
    start_over: bool = setting(False, "haStartOver")

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65535:
            raise UsageError(f"{settings_of(HaConfig)['port'].called} is {self.port!r}; it must be 0 to 65535")
        check_ranges(self)


DEFAULT_HA_CONFIG = HaConfig()
