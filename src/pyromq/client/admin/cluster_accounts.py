"""Lists, saves and deletes accounts of brokers with permissions, and returns accounts' rights.

Each broker has its own accounts. Brokers never return secret keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyromq.client.admin.admin_client import ClusterBrokers
from pyromq.client.arguments import checked
from pyromq.errors import CodeNotSupported, UsageError
from pyromq.remoting.bodies import AccountEntry, AccountTable
from pyromq.remoting.headers import DeleteAccount, ListAccounts, SaveAccount, SaveWhiteList

RIGHTS = ("DENY", "PUB", "SUB", "PUB|SUB")


@dataclass(frozen=True, slots=True)
class Rights:
    """Whether an account may send to and read a topic at a broker. `reason` is `admin` or the setting that decides."""

    broker: str
    may_send: bool
    may_read: bool
    reason: str


@checked
class Accounts:
    """The object `admin.accounts`: manages accounts at one broker (by name), or at all brokers."""

    def __init__(self, brokers: ClusterBrokers) -> None:
        self._brokers = brokers

    async def tables(self, broker: str | None = None) -> dict[str, AccountTable]:
        """Return accounts and white list of each broker, by broker name.

        Raises `UsageError` for a broker without permissions.
        """
        tables = {}
        for name, address in (await self._brokers.masters(broker=broker)).items():
            try:
                tables[name] = await self._brokers.read(address, ListAccounts(), AccountTable)
            except CodeNotSupported as error:
                raise UsageError(f"broker {name} has no accounts: its setting aclEnable is false") from error
        return tables

    async def save(
        self,
        access_key: str,
        *,
        secret_key: str | None = None,
        admin: bool | None = None,
        from_addresses: str | None = None,
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        default_topic: str | None = None,
        default_group: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create an account, or change its given settings.

        `topics` and `groups` are rights by name; "" removes a right. A new account needs a secret key. The change is in
        force when this returns. If a broker refuses, later brokers are not changed.
        """
        for right in (*(topics or {}).values(), *(groups or {}).values(), default_topic or "", default_group or ""):
            if right and right not in RIGHTS:
                raise UsageError(f"right {right!r} is unknown; use one of {', '.join(RIGHTS)}")
        for name, table in (await self.tables(broker)).items():
            known = find_account(table, access_key)
            header = SaveAccount(
                access_key,
                secret_key,
                white_remote_address=from_addresses,
                admin=(known.admin if known else False) if admin is None else admin,
                default_topic_perm=default_topic,
                default_group_perm=default_group,
                topic_perms=_merged(known.topic_perms if known else None, topics),
                group_perms=_merged(known.group_perms if known else None, groups),
            )
            (address,) = (await self._brokers.masters(broker=name)).values()
            await self._brokers.ask(address, header)

    async def delete(self, access_key: str, *, broker: str | None = None) -> None:
        """Delete an account at each broker that has it. Raises `UsageError` if no broker has it."""
        having = [name for name, table in (await self.tables(broker)).items() if find_account(table, access_key)]
        if not having:
            raise UsageError(f"account {access_key} does not exist")
        for name in having:
            await self._brokers.ask_each((await self._brokers.masters(broker=name)).values(), DeleteAccount(access_key))

    async def replace_white_list(self, patterns: Sequence[str], *, broker: str | None = None) -> None:
        """Set the addresses that may connect without an account, in each broker's default account file."""
        masters = await self._brokers.masters(broker=broker)
        await self._brokers.ask_each(masters.values(), SaveWhiteList(",".join(patterns)))

    async def rights(self, access_key: str, topic: str, *, broker: str | None = None) -> list[Rights]:
        """Return an account's rights on a topic at each broker that has it. Raises `UsageError` if no broker has it."""
        found = []
        for name, table in (await self.tables(broker)).items():
            account = find_account(table, access_key)
            if account is not None:
                right, reason = _right(account, topic)
                found.append(Rights(name, "PUB" in right, "SUB" in right, reason))
        if not found:
            raise UsageError(f"account {access_key} does not exist")
        return found


def find_account(table: AccountTable, access_key: str) -> AccountEntry | None:
    """Return the account with this access key in a broker's table; None if the broker has no such account."""
    return next((entry for entry in table.accounts if entry.access_key == access_key), None)


def _right(account: AccountEntry, topic: str) -> tuple[str, str]:
    """Return an account's right on a topic, computed as brokers do, and the setting that it comes from."""
    own = _by_name(account.topic_perms)
    if account.admin and not own and not account.group_perms:
        return "PUB|SUB", "admin"
    if topic in own:
        return own[topic], f"topicPerms: {topic}={own[topic]}"
    default = account.default_topic_perm or "DENY"
    return default, f"defaultTopicPerm: {default}"


def _by_name(rights: Sequence[str] | None) -> dict[str, str]:
    return {name.strip(): right.strip() for name, _, right in (each.partition("=") for each in rights or [])}


def _merged(known: Sequence[str] | None, changes: Mapping[str, str] | None) -> str | None:
    """Return the known rights with `changes`, in the form of a request; None if `changes` is None."""
    if changes is None:
        return None
    rights = _by_name(known) | dict(changes)
    return ",".join(f"{name}={right}" for name, right in rights.items() if right)
