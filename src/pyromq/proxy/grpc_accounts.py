"""Finds the account of a call. A client signs the header `x-mq-date-time` with the account's secret key.

    authorization: MQv2-HMAC-SHA1 Credential=KEY[/REGION/SERVICE], SignedHeaders=x-mq-date-time, Signature=HEX

The date is not checked: some clients send local time with a false `Z`. A signature can be replayed, so only TLS
protects it. Source: RocketMQ 5.3.3, AuthenticationHeader.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator

from pyromq.excerpt import excerpt
from pyromq.permissions.account import Account
from pyromq.permissions.permissions import Permissions
from pyromq.proxy.client_table import GrpcClient
from pyromq.proxy.cluster_access import ClusterAccess
from pyromq.proxy.grpc_refusal import GrpcRefusal
from pyromq.proxy.http2.grpc_stream import GrpcStream
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.remoting.signer import AccessKeySigner, Signer

_FORM = re.compile(r"MQv2-HMAC-SHA1 +Credential=([^,/]*)[^,]*, *SignedHeaders=([^,]*), *Signature=([0-9a-fA-F]*)\Z")


class GrpcAccounts:
    """The `ClusterAccess` of each account. With permissions, brokers must have the same accounts.

    `open_access` makes an access that signs its requests with an account's keys; None makes unsigned requests.
    """

    def __init__(self, permissions: Permissions | None, open_access: Callable[[Signer | None], ClusterAccess]) -> None:
        self._permissions = permissions
        self._open_access = open_access
        self._accesses: dict[tuple[str, str] | None, ClusterAccess] = {}

    def access_of(self, stream: GrpcStream) -> ClusterAccess:
        """Return the access of a call's account. Raises `GrpcRefusal` with UNAUTHORIZED."""
        account = self._account_of(stream) if self._permissions is not None else None
        keys = (account.access_key, account.secret_key) if account is not None else None
        access = self._accesses.get(keys)
        if access is None:
            signer = AccessKeySigner(*keys) if keys is not None else None
            access = self._accesses[keys] = self._open_access(signer)
        return access

    def clients(self) -> Iterator[GrpcClient]:
        """Return the clients of all accounts."""
        for access in self._accesses.values():
            yield from access.clients

    async def close(self) -> None:
        for access in self._accesses.values():
            await access.close()

    def _account_of(self, stream: GrpcStream) -> Account:
        assert self._permissions is not None
        form = _FORM.match(stream.text(b"authorization"))
        if form is None or not form[1]:
            raise _unauthorized("the call names no account: give the client an access key and a secret key")
        account = self._permissions.in_force.accounts.get(form[1])
        if account is None:
            raise _unauthorized(f"account {excerpt(form[1], 100)!r} is unknown to this proxy")
        date = stream.fields.get(b"x-mq-date-time", b"")
        expected = hmac.digest(account.secret_key.encode(), date, "sha1").hex()
        if not date or not hmac.compare_digest(expected, form[3].lower()):
            text = f"the signature does not fit account {account.access_key}: give the client the account's secret key"
            raise _unauthorized(text)
        return account


def _unauthorized(text: str) -> GrpcRefusal:
    return GrpcRefusal(proto.UNAUTHORIZED, text)
