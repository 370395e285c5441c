"""What is in force: the accounts and white lists as the files had them when they were last good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.logs import logger_of
from pyromq.permissions.account import Account, Need
from pyromq.permissions.acl_file import AclFile
from pyromq.permissions.address_patterns import Address, AddressPattern

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class InForce:
    """Accounts by access key, and who needs none. `version` counts what came into force."""

    version: int = 0
    accounts: Mapping[str, Account] = field(default_factory=dict)
    white_list: tuple[AddressPattern, ...] = ()
    files: Mapping[Path, AclFile] = field(default_factory=dict)

    def trusts(self, address: Address | None) -> bool:
        """Whether everybody at this address may do everything."""
        return address is not None and any(pattern.matches(address) for pattern in self.white_list)

    def file_of(self, access_key: str) -> AclFile | None:
        """Return the file whose account of this name counts."""
        for file in self.files.values():
            if any(account.access_key == access_key for account in file.accounts):
                return file
        return None


class Permissions:
    """Changed by the thread that reads the files, in one step; whoever judges looks at `in_force` once."""

    def __init__(self) -> None:
        self.in_force = InForce()
        self.fault: str | None = None  # why the files as they are now do not count

    def lacks(self, access_key: str | None, needs: list[Need]) -> Need | None:
        """Return the first of these rights that an account does not have now; None as key: who needs no account."""
        if access_key is None:
            return None
        account = self.in_force.accounts.get(access_key)
        return needs[0] if account is None else account.lacks(needs)

    def may_see_client(self, access_key: str | None, owner: str | None) -> bool:
        """Whether an account may be told of a client of the account `owner`: its own, or it is an administrator's."""
        if access_key is None or access_key == owner:
            return True
        account = self.in_force.accounts.get(access_key)
        return account is not None and account.admin

    def take(self, files: tuple[AclFile, ...]) -> None:
        """Put these files in force, in place of all others. The first account of a name counts."""
        accounts: dict[str, Account] = {}
        for file in files:
            for account in file.accounts:
                if account.access_key in accounts:
                    logger.warning(
                        "%s: account %s is in another file, too, which counts", file.path, account.access_key
                    )
                accounts.setdefault(account.access_key, account)
            for doubt in file.doubts:
                logger.warning("%s: %s", file.path, doubt)
        white_list = tuple(pattern for file in files for pattern in file.white_list)
        version = self.in_force.version + 1
        self.in_force = InForce(version, accounts, white_list, {file.path: file for file in files})
        self.fault = None

    def complain(self, fault: str) -> None:
        """Note that the files cannot be used; what is in force stays."""
        if fault != self.fault:
            logger.error("permissions stay as they were: %s", fault)
        self.fault = fault
