"""The settings of the console."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from pyromq.client.cluster.name_servers import addresses_of
from pyromq.console.security.client_address import check_networks
from pyromq.errors import UsageError
from pyromq.metrics.config import MetricsConfig
from pyromq.net.connection_config import ConnectionConfig

PORT = 8876


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """Where the console listens, what it shows, and where it keeps accounts, saved searches and the audit log."""

    namesrv: str | None = None  # addresses of name servers, or None: as for `AsyncProducer`
    data: Path = Path("pyromq-console")  # the console's folder, created if absent, readable only by its owner
    host: str = "127.0.0.1"  # address to listen at: any but loopback needs accounts, and TLS or a TLS proxy
    port: int = PORT  # port of browsers; 0: any free port
    connections: ConnectionConfig | None = None  # connections to the cluster, for accounts without broker keys
    tls_cert: Path | None = None  # PEM file with the certificate, with which browsers use HTTPS; None: HTTP
    tls_key: Path | None = None  # PEM file with the key, if not in the file of the certificate
    behind_tls: bool = False  # a proxy terminates HTTPS; cookies are sent only over HTTPS
    # Addresses and networks of the proxy, which adds the browser's address to X-Forwarded-For.
    proxies: tuple[str, ...] = ("127.0.0.0/8", "::1")
    # Host names that requests may use besides the address. Others are refused: DNS could point a stranger's name here.
    names: tuple[str, ...] = ()
    snapshot_seconds: float = 1.5  # pages within this time share one snapshot
    sample_seconds: float = 10.0  # time between two samples of rates and lag, kept for an hour
    session_hours: float = 12.0  # time after which a visitor must sign in again
    metrics: MetricsConfig | None = None  # the Prometheus port; None: no port
    doctor_seconds: float = 30.0  # time limit of the doctor's page, which then shows the findings so far
    search_seconds: float = 5.0  # time limit of one search, which then shows the matches so far

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port {self.port} is not between 0 and 65535")
        if self.tls_key is not None and self.tls_cert is None:
            raise UsageError(f"key {self.tls_key} is given without its certificate; give --cert, too")
        check_networks(self.proxies)
        addresses_of(self.namesrv)  # raises `UsageError`
        for name in ("snapshot_seconds", "sample_seconds", "session_hours", "doctor_seconds", "search_seconds"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be above 0")

    @property
    def speaks_https(self) -> bool:
        """Whether browsers use HTTPS, to the console or to its proxy."""
        return self.tls_cert is not None or self.behind_tls

    @property
    def is_loopback(self) -> bool:
        """Whether the listening address is loopback, so that only users of this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
