"""The configuration shared by all connections of one client or server."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.errors import UsageError
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.remoting.command import JSON
from pyromq.remoting.hooks import RemotingHook
from pyromq.remoting.signer import AccessKeySigner, Signer


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """TLS, signing, hooks and serialization of connections."""

    tls: TlsConfig | None = None  # of connections to servers; None: plain
    hooks: tuple[RemotingHook, ...] = ()  # called for every request in both directions
    signer: Signer | None = None  # signs requests
    serialization: int = JSON  # of sent headers: 0 is JSON, 1 is binary
    # An account of the broker's permissions: shorthand for `signer=AccessKeySigner(access_key, secret_key)`.
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)  # the account's; never shown

    def __post_init__(self) -> None:
        if self.access_key is None and self.secret_key is None:
            return
        account = AccessKeySigner(self.access_key or "", self.secret_key or "")
        if self.signer not in (None, account):
            raise UsageError("signer= and access_key= are both given; give only one of them")
        object.__setattr__(self, "signer", account)


PLAIN = ConnectionConfig()
