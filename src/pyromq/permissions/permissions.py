"""The accounts and white lists in force, and a thread that puts changed ACL files in force within a second.

The thread checks the files four times a second. A changed file is read if the next check finds no more changes,
since an editor may be writing the file. Invalid files change nothing. A file that cannot be read is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.permissions.account import Account, Need
from pyromq.permissions.acl_files import AclFile, AclFolder, Raw, Versions
from pyromq.permissions.address_patterns import Address, AddressPattern
from pyromq.plural import counted
from pyromq.store.worker import Worker
from pyromq.whole_file import remove_file

logger = logger_of(__name__)

CHECK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class InForce:
    """The accounts in force by access key, and the white list of addresses that need no account.

    `version` counts changes.
    """

    version: int = 0
    accounts: Mapping[str, Account] = field(default_factory=dict)
    white_list: tuple[AddressPattern, ...] = ()
    files: Mapping[Path, AclFile] = field(default_factory=dict)

    def trusts(self, address: Address | None) -> bool:
        """Return whether the white list matches this address, so that its clients may do everything."""
        return address is not None and any(pattern.matches(address) for pattern in self.white_list)

    def file_of(self, access_key: str) -> AclFile | None:
        """Return the ACL file with the account in force that has this access key; None for an unknown key."""
        for file in self.files.values():
            if any(account.access_key == access_key for account in file.accounts):
                return file
        return None


class Permissions:
    """The permissions in force.

    The thread that reads files replaces `in_force`, so each check reads `in_force` once.
    """

    def __init__(self) -> None:
        self.in_force = InForce()
        self.fault: str | None = None  # why the present ACL files are not in force; None if they are

    def lacks(self, access_key: str | None, needs: list[Need]) -> Need | None:
        """Return the first of the needed rights that an account lacks now, else None.

        Without an access key no right is lacking.
        """
        if access_key is None:
            return None
        account = self.in_force.accounts.get(access_key)
        return needs[0] if account is None else account.lacks(needs)

    def may_see_client(self, access_key: str | None, owner: str | None) -> bool:
        """Return whether an account may see a client of account `owner`.

        An account sees its own clients, an administrator all.
        """
        if access_key is None or access_key == owner:
            return True
        account = self.in_force.accounts.get(access_key)
        return account is not None and account.admin

    def take(self, files: tuple[AclFile, ...]) -> None:
        """Put the accounts of these files in force instead of the previous ones.

        Of equal access keys the first account counts.
        """
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
        """Record and log why the present ACL files are invalid; the permissions in force stay."""
        if fault != self.fault:
            logger.error("the permissions in force do not change: %s", fault)
        self.fault = fault


class AclWatch:
    """Watches the ACL files of a folder for one server. A thread does all work except `load`."""

    def __init__(self, folder: AclFolder, permissions: Permissions, thread: Worker) -> None:
        self._folder = folder
        self._permissions = permissions
        self._thread = thread
        self.close = thread.shutdown  # blocks until the watching thread has ended
        self._checking: Future[None] | None = None
        self._read: Versions = {}  # versions of the files when they were last read
        self._seen: Versions = {}  # versions of the files at the last check

    def load(self) -> None:
        """Read the ACL files for the first time, in the calling thread. Raises `UsageError` with the fault."""
        self._take()

    def check(self) -> None:
        """Let the thread check for changed files, unless the previous check is still running."""
        if self._checking is not None:
            if not self._checking.done():
                return
            self._checking.result()  # raises the error of a bug in the thread
        self._checking = self._thread.submit(self._check)

    def change(self, edit: Callable[[], None]) -> Future[None]:
        """Let the thread edit ACL files.

        The returned future completes when the change is on disk and in force, or fails.
        """

        def edit_and_take() -> None:
            edit()
            self._take()

        return self._thread.submit(edit_and_take)

    # -- replicas of a set

    @property
    def version(self) -> int:
        return self._permissions.in_force.version

    def encode(self) -> bytes:
        """Return the content of all files in force, for `adopt`."""
        folder = self._folder.folder
        files = self._permissions.in_force.files
        return msgspec.json.encode({str(path.relative_to(folder)): file.raw for path, file in files.items()})

    def adopt(self, data: bytes) -> Future[None]:
        """Replace all files by the master's, and put them in force; the future completes then, or fails.

        A file with the same content is not written. Raises `UsageError` for a file that is not an ACL file.
        """
        wanted = {
            self._folder.path_of(name): raw for name, raw in msgspec.json.decode(data, type=dict[str, Raw]).items()
        }

        def replace_all() -> None:
            present = self._permissions.in_force.files
            for path in self._folder.versions().keys() - wanted.keys():
                remove_file(path)
            for path, raw in wanted.items():
                if path not in present or not path.exists() or not _is_equal(present[path].raw, raw):
                    self._folder.write(path, raw)

        return self.change(replace_all)

    def _check(self) -> None:
        try:
            versions = self._folder.versions()
            rests = versions == self._seen
            self._seen = versions
            if versions == self._read or not rests:
                return
            self._read = versions
            self._take()
            logger.info("permissions in force: %s", counted(len(self._permissions.in_force.accounts), "account"))
        except (MQError, OSError) as error:
            self._permissions.complain(str(error))
            if isinstance(error.__cause__, OSError):  # the file cannot be read now; `chown` leaves its version as it is
                self._read = {}

    def _take(self) -> None:
        reading = self._folder.read()
        self._read = self._seen = reading.versions
        self._permissions.take(reading.files)
        in_force = self._permissions.in_force
        if not in_force.accounts and not in_force.white_list:  # an operator may have moved the file away
            logger.warning(
                "permissions are on without any account: all requests are refused until %s has an account",
                self._folder.default_file,
            )


def _is_equal(one: Raw, other: Raw) -> bool:
    """Return whether two files have the same content. JSON has no times, so times were converted to strings."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)
