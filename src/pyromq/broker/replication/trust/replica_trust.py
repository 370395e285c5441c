"""Encrypts and signs connections between the replicas of a set, with the broker's certificates and account.

If the broker's port has TLS, in any mode, replicas connect by TLS only. With permissions on, each hello is signed with
an account. The account must be an administrator of the other broker, because replicas read and change all data.
"""

from __future__ import annotations

import hmac

import msgspec

from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.replica_stream import Hello
from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.excerpt import excerpt
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.net.tls.tls_server import ServerContext, TlsMode
from pyromq.permissions.permissions import Permissions
from pyromq.remoting.signer import ACCESS_KEY, SIGNATURE, signature, signed_content


class ReplicaTrust:
    """TLS and signatures of one replica: `server_tls` for its port, `client_tls` for the connections that it opens.

    `permissions` are the permissions of its broker; None while they are off.

    Raises `UsageError` if permissions are on and the replica has no account, or if a TLS file cannot be used.
    """

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.permissions: Permissions | None = None
        self._signer = config.connections.signer if config.permissions else None
        if config.permissions and self._signer is None:
            raise UsageError(
                "permissions are on, so a replica of a set needs an account to sign with: give this broker the access"
                " key and the secret key of an administrator (connections=, or PYROMQ_ACCESS_KEY and PYROMQ_SECRET_KEY)"
            )
        tls = config.tls
        has_tls = tls is not None and tls.mode is not TlsMode.DISABLED
        self.server_tls = ServerContext(tls, clock) if tls is not None and has_tls else None
        self.client_tls = (config.connections.tls or TlsConfig()) if has_tls else None

    def sign(self, hello: Hello) -> Hello:
        """Return a hello with the account and signature of this replica; the hello itself if permissions are off."""
        if self._signer is None:
            return hello
        added = self._signer.sign({}, _signed_bytes(hello))
        return msgspec.structs.replace(hello, account=added[ACCESS_KEY], signature=added[SIGNATURE])

    def fault(self, hello: Hello) -> str | None:
        """Return why the sender of a hello is not trusted; None if it is."""
        if self.permissions is None:
            return None
        if not hello.account:
            return f"the hello of replica {hello.number} is not signed, and permissions are on here: give it an account"
        name = excerpt(hello.account)
        account = self.permissions.in_force.accounts.get(hello.account)
        if account is None:
            return f"account {name!r} of replica {hello.number} is unknown here: copy plain_acl.yml from the master"
        content = signed_content({ACCESS_KEY: hello.account}, _signed_bytes(hello))
        if not hmac.compare_digest(signature(account.secret_key, content).encode(), hello.signature.encode()):
            return f"the signature of replica {hello.number} by account {name!r} is wrong: compare the secret keys"
        if not account.admin:
            return f"account {name!r} of replica {hello.number} is not an administrator, as replicas must be"
        return None


def _signed_bytes(hello: Hello) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(hello, account="", signature=""))
