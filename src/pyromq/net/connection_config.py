"""The configuration of all connections of one client or server: TLS, signing of requests, hooks, serialization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyromq.errors import UsageError
from pyromq.net.silent_servers import SilentServers
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.remoting.bodies import ClusterTable, TopicRoute
from pyromq.remoting.command import JSON
from pyromq.remoting.hooks import RemotingHook
from pyromq.remoting.signer import AccessKeySigner, Signer


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """TLS, signing, hooks and serialization of the connections of a client or server."""

    tls: TlsConfig | None = None  # TLS of connections to servers; None: connections without TLS
    hooks: tuple[RemotingHook, ...] = ()  # hooks that are called for every request in both directions
    signer: Signer | None = None  # signs sent requests; None: requests are not signed
    serialization: int = JSON  # format of sent headers: 0 is JSON, 1 is binary
    # Access key of an account of the broker. Both keys are short for `signer=AccessKeySigner(access_key, secret_key)`.
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)  # secret key of the account; never shown
    # Requests to servers that did not answer fail immediately. None: each request waits for its own deadline.
    silent: SilentServers | None = None
    # Replaces the name servers while none of them answers. Called with a topic, returns the topic's route; called with
    # None, returns the brokers of all clusters. Returns None for an unknown topic.
    stand_in: Callable[[str | None], ClusterTable | TopicRoute | None] | None = None

    def __post_init__(self) -> None:
        if self.access_key is None and self.secret_key is None:
            return
        account = AccessKeySigner(self.access_key or "", self.secret_key or "")
        if self.signer not in (None, account):
            raise UsageError("signer= and access_key= are both given; give only one of them")
        object.__setattr__(self, "signer", account)


PLAIN = ConnectionConfig()
