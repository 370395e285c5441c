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
    """Where the proxy listens, and where name servers and accounts are."""

    namesrv: str  # name servers, `host:port` joined by `;`, or the URL of an address server
    host: str = setting("127.0.0.1")  # address to listen on
    port: int = setting(GRPC_PORT, range=(0, 65535))  # 0: any free port
    advertised: str | None = None  # `host:port` that clients connect to; None: the address that each client asked
    # Folder of ACL files, as a broker's `conf` has: clients must then sign with an account's keys. None: no accounts.
    acl: Path | None = None
    tls: ServerTlsConfig | None = None  # None: a self-signed certificate, for clients that use TLS without being told
    data: Path = Path("pyromq-data") / "proxy"  # folder of the self-signed certificate
    connections: ConnectionConfig = field(default_factory=ConnectionConfig)  # TLS and account of connections to brokers

    listening: socket | None = None  # a socket that listens already, instead of `host` and `port`

    def __post_init__(self) -> None:
        check_ranges(self)
        parse_addresses(self.namesrv)  # raises `UsageError`
