"""The proxy as a server: one port for plain and TLS connections of RocketMQ 5's clients, accounts, and shutdown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyromq.clock import Clock, SystemClock
from pyromq.errors import UsageError
from pyromq.message import join_address
from pyromq.net.listening import HandingListener, all_accepted, open_port, serve_by_asyncio, stop_listening
from pyromq.net.tasks import Tasks, every
from pyromq.net.tls.first_bytes import FirstBytes
from pyromq.net.tls.tls_server import ServerContext, ServerTlsConfig
from pyromq.permissions.acl_files import AclFolder
from pyromq.permissions.permissions import CHECK_SECONDS, AclWatch, Permissions
from pyromq.proxy.cluster_access import ClusterAccess
from pyromq.proxy.consumer_commands import ConsumerCommands
from pyromq.proxy.grpc_accounts import GrpcAccounts
from pyromq.proxy.grpc_dispatch import GrpcDispatch
from pyromq.proxy.http2.http2_connection import Http2Connection
from pyromq.proxy.http2.shared_by_connections import SharedByConnections
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proxy_config import ProxyConfig
from pyromq.proxy.receive_service import ReceiveService
from pyromq.proxy.route_service import RouteService
from pyromq.proxy.self_signed import self_signed_certificate
from pyromq.proxy.send_service import SendService
from pyromq.proxy.telemetry_service import TelemetryService
from pyromq.proxy.transaction_service import BrokerRequests, TransactionService
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.remoting.signer import Signer
from pyromq.store.disk import LocalDisk
from pyromq.store.worker import worker

if TYPE_CHECKING:
    from pyromq.proxy.proxy_metrics import ProxyMetrics

EXPIRE_SECONDS = 5.0  # interval of the search for idle connections
CLOSE_SECONDS = 3.0  # longest wait for open calls when the proxy closes


class Proxy:
    """A proxy, an async context manager. After `start`, `port` is the port in use, also if port 0 was given."""

    def __init__(self, config: ProxyConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.port = config.port
        self._clock = clock or SystemClock()
        self._permissions = Permissions() if config.acl is not None else None
        self._accounts = GrpcAccounts(self._permissions, self._open_access)
        self._receives = ReceiveService()
        telemetry = TelemetryService()
        services = (
            RouteService(_endpoints(config.advertised)),
            SendService(),
            TransactionService(),
            self._receives,
            telemetry,
        )
        self._dispatch = GrpcDispatch(self._accounts.access_of, services, telemetry)
        self.shared = SharedByConnections(self._dispatch, self._clock, RejectionLog(self._clock))
        self._listener: HandingListener | None = None
        self._watch: AclWatch | None = None
        self._tasks = Tasks()

    @property
    def address(self) -> str:
        return join_address(self.config.host, self.port)

    def metrics(self) -> ProxyMetrics:
        """Return the proxy's metrics for a `MetricsEndpoint`."""
        from pyromq.proxy.proxy_metrics import ProxyMetrics  # imported only where metrics are served

        return ProxyMetrics(self.address, self.shared, self._dispatch.counts, self._accounts.clients)

    async def start(self) -> None:
        """Open the port. The proxy connects to name servers later, with the first call.

        Raises `UsageError` that names a port in use, or a file that cannot be used.
        """
        if self._permissions is not None and self.config.acl is not None:
            thread = worker(LocalDisk(), "permissions")
            self._watch = AclWatch(AclFolder(self.config.acl), self._permissions, thread)
            self._watch.load()
            self._tasks.start(every(CHECK_SECONDS, self._watch.check, self._clock), name="check ACL files")
        tls = ServerContext(self._tls_config(), self._clock)
        listening = self.config.listening
        sockets = await open_port(self.config.host, self.config.port) if listening is None else [listening]
        sockets[0].setblocking(False)
        self.port = sockets[0].getsockname()[1]
        factory = partial(Http2Connection, self.shared)
        first_bytes = FirstBytes(tls, self._clock, self.shared.refusals, factory=factory, serve=serve_by_asyncio)
        self._listener = HandingListener(sockets, first_bytes.add, reactor=None, first_bytes=first_bytes)
        self._tasks.start(every(EXPIRE_SECONDS, self._expire, self._clock), name="close idle connections")

    async def close(self) -> None:
        """Wait for open calls, at most `CLOSE_SECONDS`; unregister the clients, and close all connections."""
        if self._listener is not None:
            stop_listening(self._listener)
            await all_accepted()
        for connection in list(self.shared.connections):
            connection.leave()
        await self._accounts.close()  # completes waiting receives
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while self.shared.connections:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            for connection in list(self.shared.connections):
                connection.abort()
        await self._dispatch.close()
        await self._receives.close()
        await self._tasks.stop()
        if self._listener is not None:
            await self._listener.wait_closed()
        if self._watch is not None:
            self._watch.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open_access(self, signer: Signer | None) -> ClusterAccess:
        return ClusterAccess(
            self.config.namesrv,
            self._clock,
            connections=self.config.connections,
            signer=signer,
            answerers=lambda access: [BrokerRequests(access), ConsumerCommands(access)],
        )

    def _tls_config(self) -> ServerTlsConfig:
        tls = self.config.tls
        if tls is None:
            tls = ServerTlsConfig(certificate=self_signed_certificate(self.config.data, self._clock.now_ms()))
        return replace(tls, application_protocols=("h2",))

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for connection in list(self.shared.connections):
            connection.expire(now)


def _endpoints(address: str | None) -> proto.Endpoints | None:
    """Return the endpoints of `HOST:PORT`. Raises `UsageError`."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"the advertised address is {address!r}; write HOST:PORT")
    scheme = proto.DOMAIN_NAME
    if ":" in host:
        scheme = proto.IPv6
    elif host.replace(".", "").isdigit():
        scheme = proto.IPv4
    return proto.Endpoints(scheme=scheme, addresses=[proto.Address(host=host, port=int(port))])
