"""Authenticates requests by the white list of addresses, else by the account of the request.

The addresses of the account are checked before the signature. Source: RocketMQ 4.9.8, PlainPermissionManager.validate.
The error texts are pyromq's.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from pyromq.errors import DENIED, AccessDenied
from pyromq.permissions.account import Account
from pyromq.permissions.address_patterns import Address, peer_address
from pyromq.permissions.permissions import InForce, Permissions
from pyromq.remoting.command import Call
from pyromq.remoting.signer import ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY, UNSIGNED, signature

REFUSED = "aclEnable"  # setting under whose name refused requests are counted
_MAX_ADDRESSES = 10_000


class Authentication:
    """Finds the account that a request belongs to, among the accounts in force."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._addresses: dict[str, Address | None] = {}

    def account_of(self, call: Call) -> Account | None:
        """Return the account whose rights apply to a request; None if the request may do everything.

        Raises `AccessDenied`.
        """
        address = self._address(call.peer.address)
        in_force = self._permissions.in_force
        if in_force.trusts(address):
            return None
        account = _account(in_force, call.fields)
        if address is not None and account.from_addresses.matches(address):
            return None
        if not is_signed_by(account, call.fields, call.body):
            raise denied(
                f"the signature does not match account {account.access_key}: the account has another secret key"
            )
        return account

    def _address(self, peer: str) -> Address | None:
        if peer not in self._addresses:
            if len(self._addresses) >= _MAX_ADDRESSES:
                self._addresses.clear()
            self._addresses[peer] = peer_address(peer)
        return self._addresses[peer]


def is_signed_by(account: Account, fields: Mapping[str, Any], body: bytes) -> bool:
    """Return whether the account's secret key made the signature among the fields, over fields and body.

    Clients from 4.9.4 on also sign the field that marks queries by unique key, older clients do not; both signatures
    are accepted.
    """
    given = fields.get(SIGNATURE)
    if not isinstance(given, str):
        return False
    presented = given.encode()
    matches = hmac.compare_digest(signature(account.secret_key, _content(fields, UNSIGNED) + body).encode(), presented)
    if not matches and UNIQUE_KEY_QUERY in fields:
        content = _content(fields, frozenset({SIGNATURE})) + body
        matches = hmac.compare_digest(signature(account.secret_key, content).encode(), presented)
    return matches


def denied(reason: str) -> AccessDenied:
    """Return the error for a refused request.

    Its text has the name of Java's exception, by which clients recognize refusals.
    """
    return AccessDenied(f"{DENIED}{reason}")


def _account(in_force: InForce, fields: Mapping[str, Any]) -> Account:
    access_key = fields.get(ACCESS_KEY)
    if not access_key:
        raise denied("the request names no account: this server requires an access key and a secret key")
    account = in_force.accounts.get(str(access_key))
    if account is None:
        raise denied(f"account {str(access_key)[:100]} is unknown to this server")
    return account


def _content(fields: Mapping[str, Any], unsigned: frozenset[str]) -> bytes:
    return "".join([_text(fields[name]) for name in sorted(fields) if name not in unsigned]).encode("utf-8", "replace")


def _text(value: Any) -> str:
    """Return a field's value as a string, as Java does: JSON's null, true and false become words."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
