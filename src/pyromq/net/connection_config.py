"""What all connections of one client or server have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.errors import UsageError
from pyromq.net.tls.config import TlsConfig
from pyromq.remoting.frame import JSON
from pyromq.remoting.hooks import RemotingHook
from pyromq.remoting.signer import AccessKeySigner, Signer


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """How connections are made: encrypted, signed, watched."""

    tls: TlsConfig | None = None  # of connections that we open; None: plain
    hooks: tuple[RemotingHook, ...] = ()  # told of every call, ours and the peers'
    signer: Signer | None = None  # signs what we ask
    serialization: int = JSON  # of the headers that we send; 1 is binary
    # An account of a broker's permissions: short for a signer that has both.
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)  # the account's; never shown

    def __post_init__(self) -> None:
        if self.access_key is None and self.secret_key is None:
            return
        account = AccessKeySigner(self.access_key or "", self.secret_key or "")
        if self.signer not in (None, account):
            raise UsageError("signer= and access_key= are given: one of them signs")
        object.__setattr__(self, "signer", account)


PLAIN = ConnectionConfig()
