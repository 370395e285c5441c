"""The settings of the proxy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from socket import socket

from pyromq.net.address_server import parse_addresses
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.server_settings import check_ranges, setting

GRPC_PORT = 8081  # the port that clients of RocketMQ 5 use


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The address, name servers, accounts and certificates of a proxy."""

    namesrv: str  # name servers, `host:port` joined by `;`, or the URL of an address server
    host: str = setting("127.0.0.1")  # address to listen on
    port: int = setting(GRPC_PORT, range=(0, 65535))  # 0: any free port
    advertised: str | None = None  # `host:port` in clients' routes; None: the address in each client's request
    # Folder of ACL files, as in a broker's `conf`; clients must sign with an account's keys. None: no accounts.
    acl: Path | None = None
    tls: ServerTlsConfig | None = None  # None: a self-signed certificate, as RocketMQ 5's clients use TLS by default
    data: Path = Path("pyromq-data") / "proxy"  # folder of the self-signed certificate
    connections: ConnectionConfig = field(default_factory=ConnectionConfig)  # TLS and account of connections to brokers

    listening: socket | None = None  # a listening socket, instead of `host` and `port`

    def __post_init__(self) -> None:
        check_ranges(self)
        parse_addresses(self.namesrv)  # raises `UsageError`
