"""What all connections of one client or server have in common."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.net.tls import TlsConfig
from pyromq.remoting.frame import JSON
from pyromq.remoting.hooks import RemotingHook
from pyromq.remoting.signer import Signer


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """How connections are made: encrypted, signed, watched."""

    tls: TlsConfig | None = None  # None: plain
    hooks: tuple[RemotingHook, ...] = ()  # told of every call, ours and the peers'
    signer: Signer | None = None  # signs what we ask
    serialization: int = JSON  # of the headers that we send; 1 is binary


PLAIN = ConnectionConfig()
