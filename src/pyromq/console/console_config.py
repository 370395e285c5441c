"""The console's settings."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from pyromq.console.security.client_address import check_networks
from pyromq.errors import UsageError
from pyromq.metrics.config import MetricsConfig
from pyromq.net.connection_config import ConnectionConfig

PORT = 8876


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """Where the console listens, what it shows, and where it keeps accounts, saved searches and the audit log."""

    namesrv: str | None = None  # as for `AsyncProducer`
    data: Path = Path("pyromq-console")  # a folder, made when absent, for its owner's eyes
    host: str = "127.0.0.1"  # other than loopback needs accounts, and TLS or a proxy that speaks it
    port: int = PORT  # 0: any free one
    connections: ConnectionConfig | None = None  # how it reaches the cluster, for accounts without keys of their own
    tls_cert: Path | None = None  # PEM; browsers then speak HTTPS
    tls_key: Path | None = None  # where the key is not in the certificate's file
    behind_tls: bool = False  # a proxy before it speaks HTTPS: cookies are for that alone
    # Addresses and networks of that proxy: what it adds to X-Forwarded-For is the browser's address.
    proxies: tuple[str, ...] = ("127.0.0.0/8", "::1")
    # Names by which browsers may ask for it, beside its own address: others could be a stranger's, led here by DNS.
    names: tuple[str, ...] = ()
    snapshot_seconds: float = 1.5  # views within so long share what was asked of the cluster
    sample_seconds: float = 10.0  # how often rates and lag are noted; an hour of it is kept
    session_hours: float = 12.0  # after which one signs in again
    metrics: MetricsConfig | None = None  # the port for Prometheus; None: there is none
    doctor_seconds: float = 30.0  # how long the doctor's page may ask before it shows what it has
    search_seconds: float = 5.0  # how long one search may read queues before it shows what it has

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port {self.port} is not between 0 and 65535")
        if self.tls_key is not None and self.tls_cert is None:
            raise UsageError(f"a key without a certificate: give --tls-cert to go with {self.tls_key}")
        check_networks(self.proxies)
        for name in ("snapshot_seconds", "sample_seconds", "session_hours", "doctor_seconds", "search_seconds"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name}={getattr(self, name)}: must be above 0")

    @property
    def speaks_https(self) -> bool:
        """Whether browsers see HTTPS."""
        return self.tls_cert is not None or self.behind_tls

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine's users reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
