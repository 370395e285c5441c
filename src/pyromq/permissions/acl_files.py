"""The ACL files with the accounts: `plain_acl.yml` in a folder, and all `.yml` and `.yaml` in its subfolder `acl/`.

    globalWhiteRemoteAddresses:          addresses whose clients may do everything, without an account
    - 10.10.103.*
    accounts:
    - accessKey: orders-app              at least 7 characters, as the secret key
      secretKey: a-long-secret
      whiteRemoteAddress: 10.10.103.7    requests from there need no signature and have all rights
      admin: false                       true: all rights, unless the account lists rights
      defaultTopicPerm: DENY             DENY, PUB, SUB, PUB|SUB; absent: DENY
      defaultGroupPerm: SUB
      topicPerms: [orders=PUB|SUB]       replaces the default for these topics
      groupPerms: [billing=SUB]
    dataVersion:                         increased by each change
    - counter: 3
      timestamp: 1700000000000

No error quotes the content of a file, which may have a secret. Only the owner can read a new file.
Source: RocketMQ 4.9.8, PlainPermissionManager.load, getAllAclFiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyromq.errors import StoreNotWritable, UsageError
from pyromq.excerpt import excerpt
from pyromq.names import retry_topic
from pyromq.permissions.account import DENY, RIGHTS, SHORTEST, Account
from pyromq.permissions.address_patterns import AddressPattern, parse_pattern
from pyromq.remoting.bodies import DataVersion
from pyromq.whole_file import OWNER_ONLY, FileVersion, replace_file, version_of

WHITE_LIST = "globalWhiteRemoteAddresses"
ACCOUNTS = "accounts"
DATA_VERSION = "dataVersion"

_KEYS = {
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
}  # fmt: skip

Raw = dict[str, Any]  # an account or a file as decoded from YAML, including unknown entries


@dataclass(frozen=True, slots=True)
class AclFile:
    """The content of an ACL file. `doubts` are warnings about entries that may be mistakes."""

    path: Path
    raw: Raw
    white_list: tuple[AddressPattern, ...]
    accounts: tuple[Account, ...]
    version: DataVersion
    doubts: tuple[str, ...] = ()


def parse_acl_file(path: Path, content: bytes) -> AclFile:
    """Parse the content of an ACL file; an empty file has no accounts.

    Raises `UsageError` with file, line or account, and fault.
    """
    import yaml  # imported here: the import takes 20 ms, which brokers without permissions save

    try:
        raw = yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise UsageError(f"{path}{place}: no YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no YAML: {type(error).__name__}") from None
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: the file is not a mapping of {WHITE_LIST} and {ACCOUNTS}")
    try:
        return _parsed(path, raw)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def write_acl_file(raw: Raw) -> bytes:
    """Return the bytes of an ACL file with this content, as YAML."""
    import yaml

    text: str = yaml.safe_dump(raw, default_flow_style=False, sort_keys=False, allow_unicode=True)
    return text.encode()


def parse_account(raw: Raw, number: int = 0, doubts: list[str] | None = None) -> Account:
    """Return the account decoded from YAML.

    Raises `UsageError` with the name of the account, or its number if the name is missing. Warnings are appended to
    `doubts`.
    """
    name = f"account {raw['accessKey']!r}" if isinstance(raw.get("accessKey"), str) else f"account {number}"
    doubts = doubts if doubts is not None else []
    try:
        rights = _rights(raw, "groupPerms", name, doubts, prefix=retry_topic(""))
        rights |= _rights(raw, "topicPerms", name, doubts)
        account = Account(
            _key(raw, "accessKey"),
            _key(raw, "secretKey"),
            admin=_flag(raw, "admin"),
            from_addresses=parse_pattern(_text(raw, "whiteRemoteAddress")),
            default_topic_right=_right(_text(raw, "defaultTopicPerm"), f"defaultTopicPerm of {name}", doubts),
            default_group_right=_right(_text(raw, "defaultGroupPerm"), f"defaultGroupPerm of {name}", doubts),
            rights=rights,
        )
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    doubts += [f"{key!r} of {name} is unknown and does nothing" for key in raw if key not in _KEYS]
    return account


def _parsed(path: Path, raw: Raw) -> AclFile:
    doubts: list[str] = []
    accounts: dict[str, Account] = {}
    for number, each in enumerate(_list(raw, ACCOUNTS), 1):
        if not isinstance(each, dict):
            raise UsageError(f"account {number} is not a mapping")
        account = parse_account(each, number, doubts)
        if account.access_key in accounts:
            doubts.append(f"account {account.access_key!r} comes twice; the first one counts")
        accounts.setdefault(account.access_key, account)
    patterns = tuple(parse_pattern(str(each)) for each in _list(raw, WHITE_LIST))
    return AclFile(path, raw, patterns, tuple(accounts.values()), _version(raw), tuple(doubts))


def _list(raw: Raw, name: str) -> list[Any]:
    value = raw.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise UsageError(f"{name} is not a list")
    return value


def _text(raw: Raw, name: str) -> str:
    """Return the text of entry `name`; a number without quotes becomes the text of its digits, a missing entry ""."""
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{name} is read as {type(value).__name__}, no text; put it in quotes")
    return str(value)


def _key(raw: Raw, name: str) -> str:
    text = _text(raw, name)
    if len(text) < SHORTEST:
        raise UsageError(f"{name} has {len(text)} characters; it must have {SHORTEST} at least")
    return text


def _flag(raw: Raw, name: str) -> bool:
    value = raw.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise UsageError(f"{name} is neither true nor false")


def _rights(raw: Raw, name: str, account: str, doubts: list[str], *, prefix: str = "") -> dict[str, int]:
    rights = {}
    for each in _list(raw, name):
        words = [word.strip() for word in str(each).split("=") if word]
        if len(words) != 2 or not words[0]:
            raise UsageError(f"{name} has {each!r}; write NAME=PUB|SUB, NAME=PUB, NAME=SUB or NAME=DENY")
        rights[prefix + words[0]] = _right(words[1], f"{words[0]} in {name} of {account}", doubts)
    return rights


def _right(text: str, what: str, doubts: list[str]) -> int:
    """Return the right that a string names; an unknown string is DENY, as in RocketMQ."""
    right = RIGHTS.get(text.strip())
    if right is None:
        if text:
            doubts.append(f"the right {text!r} of {what} is unknown and counts as DENY")
        return DENY
    return right


def _version(raw: Raw) -> DataVersion:
    first = next(iter(_list(raw, DATA_VERSION)), None)
    if not isinstance(first, dict):
        return DataVersion(timestamp=0, counter=0)
    try:
        return DataVersion(timestamp=int(first.get("timestamp", 0)), counter=int(first.get("counter", 0)))
    except (TypeError, ValueError):
        raise UsageError(f"{DATA_VERSION} is not a list of counter and timestamp") from None


Versions = dict[Path, FileVersion]


@dataclass(frozen=True, slots=True)
class AclReading:
    """The content of all ACL files, with the versions that the files had before reading."""

    versions: Versions
    files: tuple[AclFile, ...]


class AclFolder:
    """One folder of ACL files. The folder and the files may be absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.default_file = folder / "plain_acl.yml"

    def versions(self) -> Versions:
        """Return the versions of all ACL files. Files below `acl/` come first, by name."""
        return {path: version for path in self._paths() if (version := version_of(path)) is not None}

    def read(self) -> AclReading:
        """Read and parse all ACL files. Raises `UsageError` with the file that cannot be read, and the reason."""
        versions = self.versions()
        return AclReading(versions, tuple(parse_acl_file(path, _content(path)) for path in versions))

    def holds(self, path: Path) -> bool:
        """Return whether `path` is one of the ACL files in this folder."""
        return path in set(self._paths())

    def path_of(self, name: str) -> Path:
        """Return the path of an ACL file named relative to the folder. Raises `UsageError` for any other file."""
        path = Path(name)
        is_below = path.parts[:1] == ("acl",) and ".." not in path.parts and path.suffix in (".yml", ".yaml")
        if name != self.default_file.name and not is_below:
            raise UsageError(f"{excerpt(name)!r} is not an ACL file: write plain_acl.yml or acl/NAME.yml")
        return self.folder / path

    def write(self, path: Path, raw: Raw) -> None:
        """Replace an ACL file durably; the file keeps its mode. Raises `StoreNotWritable`."""
        try:
            mode = path.stat().st_mode & 0o777 if path.exists() else OWNER_ONLY
            replace_file(path, write_acl_file(raw), mode=mode)
        except OSError as error:
            raise StoreNotWritable(f"cannot write {path}: {error.strerror}") from error

    def _paths(self) -> Iterator[Path]:
        below = self.folder / "acl"
        for path in sorted(below.rglob("*.y*ml")):
            if path.suffix in (".yml", ".yaml") and not path.name.startswith("."):
                yield path
        if self.default_file.exists():
            yield self.default_file


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
