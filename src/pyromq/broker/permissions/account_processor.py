"""Answers administrators' requests to list and change accounts and white lists.

As upstream, a changed account is written to the file that holds the account, a new account to the default file. The
other content of a file is kept, except comments. The reply is sent when the change is on disk and in force.
Source: RocketMQ 4.9.8, AdminBrokerProcessor, PlainPermissionManager. Unlike upstream, replies contain no secret keys.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyromq.errors import BrokerError, MQError, ResponseCode, UsageError
from pyromq.logs import logger_of
from pyromq.permissions.account import RIGHTS
from pyromq.permissions.acl_files import ACCOUNTS, DATA_VERSION, WHITE_LIST, AclFolder, Raw, parse_account
from pyromq.permissions.address_patterns import parse_pattern
from pyromq.permissions.permissions import AclWatch
from pyromq.remoting.bodies import AccountEntry, AccountTable, DataVersion, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    AccountsVersion,
    AccountsVersionResponse,
    DeleteAccount,
    ListAccounts,
    SaveAccount,
    SaveWhiteList,
)

if TYPE_CHECKING:
    from pyromq.broker.shared_state import SharedState

logger = logger_of(__name__)

HIDDEN = "********"  # replaces a secret key in replies; a request with this text keeps the account's present key

# Header field -> key in the accounts file. A field that is absent in the request leaves its key unchanged.
_TEXTS = {
    "white_remote_address": "whiteRemoteAddress",
    "default_topic_perm": "defaultTopicPerm",
    "default_group_perm": "defaultGroupPerm",
}
_LISTS = {"topic_perms": "topicPerms", "group_perms": "groupPerms"}


class AccountProcessor:
    """Lists and changes the accounts of one broker."""

    def __init__(self, state: SharedState, watch: AclWatch, folder: AclFolder) -> None:
        self._permissions = state.permissions
        self._watch = watch
        self._folder = folder
        self._config = state.config
        self._clock = state.clock
        self._when_kept = state.confirmation.when_kept

    @answers(SaveAccount)
    def save(self, header: SaveAccount, call: Call) -> Future[Reply]:
        """Create or change an account; reply when the change is in force.

        Unlike upstream: without a secret key in the request, an existing account keeps its key. Fails with
        ACL_UPDATE_FAILED.
        """
        logger.info("account %s is saved by %s", header.access_key, call.peer.address)
        return self._changed(partial(self._save, header), ResponseCode.ACL_UPDATE_FAILED)

    @answers(DeleteAccount)
    def delete(self, header: DeleteAccount, call: Call) -> Future[Reply]:
        """Delete an account; reply when the broker refuses the account's requests. Fails with ACL_DELETE_FAILED."""
        logger.info("account %s is deleted by %s", header.access_key, call.peer.address)
        return self._changed(partial(self._delete, header.access_key), ResponseCode.ACL_DELETE_FAILED)

    @answers(SaveWhiteList)
    def save_white_list(self, header: SaveWhiteList, call: Call) -> Future[Reply]:
        """Replace the white list of one accounts file: addresses that need no account.

        Fails with ACL_WHITE_LIST_FAILED.
        """
        logger.info("the white list is set to %s by %s", header.addresses, call.peer.address)
        return self._changed(partial(self._save_white_list, header), ResponseCode.ACL_WHITE_LIST_FAILED)

    @answers(AccountsVersion)
    def version(self, header: AccountsVersion, call: Call) -> Reply:
        files = self._permissions.in_force.files
        versions = {str(path): _version_json(file.version) for path, file in files.items()}
        default = files.get(self._folder.default_file)
        return Reply(
            AccountsVersionResponse(
                version=_json(_version_json(default.version if default is not None else DataVersion())),
                broker_name=self._config.name,
                broker_addr=self._config.advertised_address,
                cluster_name=self._config.cluster,
                all_acl_file_version=_json(versions),
            )
        )

    @answers(ListAccounts)
    def accounts(self, header: ListAccounts, call: Call) -> Reply:
        """Return all accounts, spelled as in their files, with hidden secret keys, and the white list of addresses."""
        in_force = self._permissions.in_force
        entries = [
            _entry(raw)
            for file in in_force.files.values()
            for raw in file.raw.get(ACCOUNTS) or []
            if in_force.file_of(str(raw.get("accessKey"))) is file
        ]
        white_list = [pattern.text for pattern in in_force.white_list]
        return Reply(body=encode_body(AccountTable(white_list=white_list, accounts=entries)))

    def _changed(self, edit: Callable[[], None], code: ResponseCode) -> Future[Reply]:
        answered: Future[Reply] = Future()

        def done(changed: Future[None]) -> None:
            error = changed.exception()
            if error is None:
                answered.set_result(Reply())
            elif isinstance(error, MQError):
                answered.set_exception(error if isinstance(error, BrokerError) else BrokerError(str(error), code))
            else:
                answered.set_exception(error)

        self._when_kept(self._watch.change(edit)).add_done_callback(done)
        return answered

    def _save(self, header: SaveAccount) -> None:
        path, raw, accounts = self._file_with(header.access_key)
        known = _found(accounts, header.access_key)
        account = dict(known or {}) | _given(header)
        if not account.get("secretKey"):
            raise UsageError(f"account {header.access_key!r} is new and needs a secret key")
        doubts: list[str] = []
        parse_account(account, doubts=doubts)
        _refuse_unknown_rights(account)
        if known is not None:
            accounts.remove(known)
        raw[ACCOUNTS] = [*accounts, account]
        self._write(path, raw)

    def _delete(self, access_key: str) -> None:
        path, raw, accounts = self._file_with(access_key)
        known = _found(accounts, access_key)
        if known is None:
            raise UsageError(f"account {access_key!r} does not exist")
        raw[ACCOUNTS] = [each for each in accounts if each is not known]
        self._write(path, raw)

    def _save_white_list(self, header: SaveWhiteList) -> None:
        patterns = [parse_pattern(text).text for text in header.addresses.split(",") if text.strip()]
        path = Path(header.file) if header.file else self._folder.default_file
        if path != self._folder.default_file and not self._folder.holds(path):
            raise UsageError(f"{header.file!r} is no accounts file of this broker; omit the file for the default one")
        raw = self._raw(path)
        raw[WHITE_LIST] = patterns
        self._write(path, raw)

    def _file_with(self, access_key: str) -> tuple[Path, Raw, list[Raw]]:
        """Return the path of the account's file (the default file for a new account), its content and its accounts."""
        reading = self._folder.read()
        holding = (file.path for file in reading.files if any(a.access_key == access_key for a in file.accounts))
        path = next(holding, self._folder.default_file)
        raw = next((file.raw for file in reading.files if file.path == path), {})
        return path, raw, list(raw.get(ACCOUNTS) or [])

    def _raw(self, path: Path) -> Raw:
        return next((file.raw for file in self._folder.read().files if file.path == path), {})

    def _write(self, path: Path, raw: Raw) -> None:
        """Write an accounts file with the next version number.

        Source: PlainPermissionManager.updateAclConfigFileVersion.
        """
        versions = raw.get(DATA_VERSION) or [{}]
        counter = int(versions[0].get("counter", 0)) + 1
        raw[DATA_VERSION] = [{"counter": counter, "timestamp": self._clock.now_ms()}]
        self._folder.write(path, raw)


def _found(accounts: list[Raw], access_key: str) -> Raw | None:
    return next((each for each in accounts if str(each.get("accessKey")) == access_key), None)


def _given(header: SaveAccount) -> Raw:
    """Return the account that a request contains, spelled as in accounts files; absent fields are omitted."""
    given: Raw = {"accessKey": header.access_key, "admin": header.admin}
    if header.secret_key and header.secret_key != HIDDEN:
        given["secretKey"] = header.secret_key
    for attribute, key in _TEXTS.items():
        text = getattr(header, attribute)
        if text is not None:
            given[key] = text
    for attribute, key in _LISTS.items():
        text = getattr(header, attribute)
        if text is not None:
            given[key] = [each.strip() for each in text.split(",") if each.strip()]
    return given


def _refuse_unknown_rights(account: Raw) -> None:
    """Raise `UsageError` for an unknown right.

    An unknown right in an accounts file only denies; in a request it is refused.
    """
    texts = [account.get(key) for key in ("defaultTopicPerm", "defaultGroupPerm")]
    lists = (account.get(key) or [] for key in _LISTS.values())
    texts += [str(each).rpartition("=")[2] for rights in lists for each in rights]
    for text in texts:
        if text and str(text).strip() not in RIGHTS:
            raise UsageError(f"{text!r} is not a right; write PUB, SUB, PUB|SUB or DENY")


def _entry(raw: Raw) -> AccountEntry:
    def text(key: str) -> str | None:
        return None if raw.get(key) is None else str(raw[key])

    def texts(key: str) -> list[str] | None:
        return None if raw.get(key) is None else [str(each) for each in raw[key]]

    return AccountEntry(
        access_key=str(raw["accessKey"]),
        secret_key=HIDDEN,
        white_remote_address=text("whiteRemoteAddress"),
        admin=str(raw.get("admin")).lower() == "true",
        default_topic_perm=text("defaultTopicPerm"),
        default_group_perm=text("defaultGroupPerm"),
        topic_perms=texts("topicPerms"),
        group_perms=texts("groupPerms"),
    )


def _version_json(version: DataVersion) -> dict[str, int]:
    return {"counter": version.counter, "timestamp": version.timestamp}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
