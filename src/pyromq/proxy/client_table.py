"""The clients of RocketMQ 5 that use one account, with their topics, subscriptions and Telemetry streams.

No network here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyromq.clock import Clock
from pyromq.errors import LimitReached
from pyromq.proxy.http2.grpc_stream import GrpcStream
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto.service_pb2 import TelemetryCommand
from pyromq.quota import Quota

MAX_CLIENTS = 20_000  # limit of the clients of an account
SETTINGS_BYTES = 8 << 20  # limit of the settings of an account's clients: in memory they take three times as much
LEAST_SETTINGS_BYTES = 4 << 10  # settings that each client may have beyond the limit: enough for 30 topics
MAX_TOPICS = 4_096  # limit of a client's topics, or subscriptions
SILENT_SECONDS = 120.0  # silence after which a client is removed. Source: the genuine proxy
CONSUMER_TYPES = frozenset({proto.PUSH_CONSUMER, proto.SIMPLE_CONSUMER, proto.PULL_CONSUMER})


@dataclass(slots=True, eq=False)
class GrpcClient:
    """A client. `topics` are those of a producer; `subscriptions` are a consumer's expressions by topic."""

    client_id: str
    seen_at: float  # monotonic time of the latest settings or heartbeat
    kind: int = proto.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    topics: frozenset[str] = frozenset()
    subscriptions: dict[str, proto.FilterExpression] = field(default_factory=dict)
    stream: GrpcStream | None = None  # the newest Telemetry stream
    # Callbacks of commands that the client has not answered on its stream, by nonce.
    pending_commands: dict[str, Callable[[TelemetryCommand], None]] = field(default_factory=dict)
    receives: set[asyncio.Future[None]] = field(default_factory=set)  # completed when the client terminates

    @property
    def takes_commands(self) -> bool:
        """Whether the client has a Telemetry stream, and reads what its connection gets."""
        return self.stream is not None and not self.stream.connection.is_over_share

    @property
    def is_consumer(self) -> bool:
        return self.kind in CONSUMER_TYPES and bool(self.group)


class ClientTable:
    """The clients of one account, by client id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[str, GrpcClient] = {}
        self._settings: Quota[GrpcClient] = Quota("SETTINGS_BYTES", SETTINGS_BYTES, least=LEAST_SETTINGS_BYTES)
        self._turn = 0

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[GrpcClient]:
        return iter(list(self._clients.values()))

    def find(self, client_id: str) -> GrpcClient | None:
        return self._clients.get(client_id)

    def register(self, client_id: str) -> GrpcClient:
        """Return the client, added if it is new, and note the time of its call. Raises `LimitReached`."""
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                raise LimitReached("MAX_CLIENTS", MAX_CLIENTS, "the proxy has too many clients: close some")
            client = self._clients[client_id] = GrpcClient(client_id, 0.0)
        client.seen_at = self._clock.monotonic()
        return client

    def keep_settings(self, client: GrpcClient, size: int) -> None:
        """Count `size` bytes for a client's new settings, which replace the previous. Raises `LimitReached`."""
        more = size - self._settings.of(client)
        self._settings.acquire(client, more, text="the clients' settings are too large: subscribe to fewer topics")

    def remove(self, client: GrpcClient) -> None:
        """Remove a client and complete its waiting receives. A later client of the same id stays."""
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]
        self._settings.end(client)
        for receive in client.receives:
            if not receive.done():
                receive.set_result(None)

    def expired(self) -> list[GrpcClient]:
        """Remove and return the clients that have no Telemetry stream and sent nothing for `SILENT_SECONDS`."""
        limit = self._clock.monotonic() - SILENT_SECONDS
        gone = [each for each in self._clients.values() if each.seen_at < limit and each.stream is None]
        for client in gone:
            self.remove(client)
        return gone

    @property
    def produced_topics(self) -> set[str]:
        return {topic for client in self._clients.values() for topic in client.topics}

    def producer_of(self, topic: str) -> GrpcClient | None:
        """Return a producer of a topic that reads its stream, another with each call; None if there is none."""
        found = [each for each in self._clients.values() if topic in each.topics and each.takes_commands]
        self._turn += 1
        return found[self._turn % len(found)] if found else None
