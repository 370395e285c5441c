"""The accounts of the console: name, role, password hash, and optionally the keys of a broker account.

Accounts are in one JSON file that only its owner can read. Passwords are hashed by argon2. Keys of broker accounts are
stored as they are, because they sign requests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.whole_file import replace_file, version_of

logger = logger_of(__name__)

LEAST_PASSWORD = 8  # least number of characters in a password
MAX_PASSWORD = 1024  # limit of characters in a password: hashing a longer password takes longer


class Role(IntEnum):
    """The rights of a console account. Each role includes the rights of the roles declared before."""

    VIEWER = 1  # may see everything, including messages
    OPERATOR = 2  # may also send, redrive, reset offsets, cancel scheduled messages, decide transactions
    ADMIN = 3  # may also change topics, groups, accounts and settings of brokers

    @property
    def text(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, text: str) -> Role:
        """Return the role with this name. Raises `UsageError` for an unknown name."""
        try:
            return cls[text.upper()]
        except KeyError:
            raise UsageError(f"role {text!r} is unknown; write {' or '.join(each.text for each in cls)}") from None


class ConsoleAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account that may sign in to the console.

    With broker keys, the console signs the account's requests to brokers with these keys.
    """

    name: str
    role: str
    password_hash: str
    access_key: str | None = None
    secret_key: str | None = None

    @property
    def rank(self) -> Role:
        return Role.of(self.role)

    def __repr__(self) -> str:
        return f"Account({self.name!r}, {self.role})"


class ConsoleAccounts:
    """The accounts of the console in one file. A change takes effect after the file is written.

    Each method first reads the file again if another process has changed it, and then calls `on_change` with the name
    of each account that was changed or deleted. If the file is gone or invalid, the accounts stay as they were.
    """

    def __init__(self, path: Path, on_change: Callable[[str], None] = lambda name: None) -> None:
        self._path = path
        self._on_change = on_change
        self._hasher = PasswordHasher()
        self._changing = threading.Lock()  # accounts are saved in threads, because hashing takes long
        self._accounts: dict[str, ConsoleAccount] = {}
        self._version = version_of(path)
        self._fault = ""  # why the present file is not in use; empty if it is
        if self._version is not None:
            self._accounts = self._read()

    def all(self) -> list[ConsoleAccount]:
        """The accounts in order of names."""
        self._refresh()
        return [self._accounts[name] for name in sorted(self._accounts)]

    def find(self, name: str) -> ConsoleAccount | None:
        self._refresh()
        return self._accounts.get(name)

    def signed_in(self, name: str, password: str) -> ConsoleAccount | None:
        """Return the account with this name and password, or None. Takes about 50 ms of processor time."""
        self._refresh()
        account, nobody = self._accounts.get(name), self._nobody
        known = account.password_hash if account is not None else nobody
        try:
            self._hasher.verify(known, password[:MAX_PASSWORD])
        except (Argon2Error, InvalidHashError):
            return None
        return account

    @cached_property
    def _nobody(self) -> str:
        """Return a hash to compare for unknown names, so that their refusal takes as long as that of known names."""
        return self._hasher.hash(os.urandom(16).hex())

    def save(
        self,
        name: str,
        *,
        role: str | None = None,
        password: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> ConsoleAccount:
        """Create an account, or change the given fields of an account; keys that are "" are removed.

        Raises `UsageError`.
        """
        with self._changing:
            return self._save(name, role, password, access_key, secret_key)

    def _save(
        self, name: str, role: str | None, password: str | None, access_key: str | None, secret_key: str | None
    ) -> ConsoleAccount:
        self._refresh()
        known = self._accounts.get(name)
        _check_name(name)
        if known is None and (role is None or not password):
            raise UsageError(f"account {name} is new: it needs a role and a password")
        if password and not LEAST_PASSWORD <= len(password) <= MAX_PASSWORD:
            raise UsageError(
                f"the password has {len(password)} characters; {LEAST_PASSWORD} to {MAX_PASSWORD} are allowed"
            )
        rank = Role.of(role) if role is not None else Role.of(known.role if known else "")
        access_key = (known.access_key if known else None) if access_key is None else access_key or None
        secret_key = (known.secret_key if known else None) if secret_key is None else secret_key or None
        if (access_key is None) != (secret_key is None):
            raise UsageError("an account of the brokers has an access key and a secret key: give both, or neither")
        if rank is not Role.ADMIN:
            if not self._accounts:
                raise UsageError("the first account must be an administrator (admin), who can create the others")
            self._keep_an_admin(name)
        account = ConsoleAccount(
            name=name,
            role=rank.text,
            password_hash=self._hasher.hash(password) if password else (known.password_hash if known else ""),
            access_key=access_key,
            secret_key=secret_key,
        )
        self._write({**self._accounts, name: account})
        return account

    def delete(self, name: str) -> None:
        """Delete an account. Raises `UsageError` if the account does not exist, or is the only administrator."""
        with self._changing:
            self._refresh()
            if name not in self._accounts:
                raise UsageError(f"account {name} does not exist")
            self._keep_an_admin(name)
            self._write({key: each for key, each in self._accounts.items() if key != name})

    def _refresh(self) -> None:
        version = version_of(self._path)
        if version in (None, self._version):  # if the file is gone: without accounts, every visitor could do everything
            return
        try:
            found = self._read()
        except UsageError as error:
            if str(error) != self._fault:
                logger.error("%s; the accounts stay as they were", error)  # noqa: TRY400  its text is all there is to know
            self._fault = str(error)
            # `chown` may make a file readable, and leaves its version as it is.
            if not isinstance(error.__cause__, OSError):
                self._version = version
            return
        self._version, self._fault = version, ""
        before, self._accounts = self._accounts, found
        for name, account in before.items():
            if found.get(name) != account:
                self._on_change(name)

    def _read(self) -> dict[str, ConsoleAccount]:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[ConsoleAccount])
            return {each.name: each for each in found if each.rank}
        except (OSError, msgspec.DecodeError, UsageError) as error:
            raise UsageError(f"the console's accounts in {self._path} cannot be read: {error}") from error

    def _keep_an_admin(self, name: str) -> None:
        others = [each for each in self._accounts.values() if each.name != name]
        was_admin = (known := self._accounts.get(name)) is not None and known.rank is Role.ADMIN
        if was_admin and not any(each.rank is Role.ADMIN for each in others):
            raise UsageError(f"account {name} is the last administrator; create another one first")

    def _write(self, accounts: dict[str, ConsoleAccount]) -> None:
        body = msgspec.json.format(msgspec.json.encode([accounts[name] for name in sorted(accounts)]), indent=2)
        self._version = replace_file(self._path, body + b"\n")
        self._accounts = accounts


def _check_name(name: str) -> None:
    if not name or len(name) > 64 or not all(each.isalnum() or each in "._-@" for each in name):
        raise UsageError(f"account name {name[:80]!r} is illegal; use letters, digits and . _ - @, at most 64")
