"""Accounts of a broker's permissions."""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body


class AccountEntry(Body):
    """An account. Our brokers send stars instead of the secret key."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AccountTable(Body):
    """All accounts, and the addresses that need no account."""

    white_list: list[str] = field(name="globalWhiteAddrs", default_factory=list)
    accounts: list[AccountEntry] = field(name="plainAccessConfigs", default_factory=list)
