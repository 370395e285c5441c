"""Accounts and white lists of a broker's permissions."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class SaveAccount(Header):
    """Create an account, or change what of it is given; lists are `name=PUB|SUB`, joined by commas."""

    code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccount(Header):
    """Delete an account."""

    code = RequestCode.DELETE_ACL_CONFIG
    access_key: str


class AccountsVersionResponse(Header):
    """JSON texts: the version of the first file, and those of all files by their paths."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class AccountsVersion(Header):
    """Which version the files of accounts have."""

    code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
    reply_header = AccountsVersionResponse


class SaveWhiteList(Header):
    """Replace the addresses, joined by commas, in one file; "" is the default file."""

    code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    addresses: str = field(name="globalWhiteAddrs")
    file: str = field(name="aclFileFullPath", default="")


class Accounts(Header):
    """All accounts and white lists."""

    code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
    reply_body = bodies.AccountTable
