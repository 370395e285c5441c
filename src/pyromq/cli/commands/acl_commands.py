"""`pyromq acl`: accounts of brokers with permissions, and their rights."""

from __future__ import annotations

import sys
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.cluster_names import TOPIC_NAME
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import connections, namesrv_option, secret_in, with_admin
from pyromq.cli.prompts import confirm, yes_option
from pyromq.cli.ranges import ANY_TEXT
from pyromq.cli.render import output_option, show_rows
from pyromq.client.admin.cluster_accounts import RIGHTS, find_account

_RIGHT = click.Choice(RIGHTS, case_sensitive=False)
_broker_option = click.option("-b", "--broker", metavar="NAME", help="Only on this broker. [default: all]")


@click.group(cls=Group)
def acl() -> None:
    """List, set, delete and check accounts and their rights, on brokers with permissions.

    Needs an administrator's account: `pyromq --access-key KEY --secret-key @FILE acl list`.
    """


@acl.command("list")
@_broker_option
@with_admin
@output_option
def list_accounts(admin: Admin, broker: str | None, output: str) -> None:
    """List accounts and their rights, never secrets. The last rows are addresses that need no account."""
    tables = admin.accounts.tables(broker)
    rows: list[dict[str, Any]] = [
        {
            "broker": name,
            "account": account.access_key,
            "admin": account.admin,
            "topics": " ".join(account.topic_perms or []),
            "other_topics": account.default_topic_perm or "DENY",
            "groups": " ".join(account.group_perms or []),
            "other_groups": account.default_group_perm or "DENY",
            "addresses": account.white_remote_address or "",
        }
        for name, table in sorted(tables.items())
        for account in table.accounts
    ]
    rows += [
        {
            "broker": name,
            "account": "",
            "admin": True,
            "topics": "",
            "other_topics": "PUB|SUB",
            "groups": "",
            "other_groups": "SUB",
            "addresses": pattern,
        }
        for name, table in sorted(tables.items())
        for pattern in table.white_list
    ]
    show_rows(rows, output, empty="there are no accounts")


@acl.command("set")
@click.argument("account")
@click.option("--new-secret", metavar="@FILE", help="File with the account's secret key. [default: prompt]")
@click.option("--admin/--no-admin", default=None, help="Make it an administrator, which has all rights, or not.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME=RIGHT",
    help="PUB, SUB, PUB|SUB or DENY; empty: the default.",
)
@click.option("-g", "--group", "groups", multiple=True, metavar="NAME=RIGHT", help="SUB or DENY; empty: the default.")
@click.option("--other-topics", type=_RIGHT, help="Default right on topics.")
@click.option("--other-groups", type=_RIGHT, help="Default right on groups.")
@click.option(
    "--from", "addresses", type=ANY_TEXT, metavar="PATTERN", help="Addresses that need neither signature nor rights."
)
@_broker_option
@namesrv_option
def set_account(account: str, new_secret: str | None, broker: str | None, namesrv: str, **options: Any) -> None:
    """Create ACCOUNT, or change the given settings of it."""
    topics, groups = _rights("--topic", options["topics"]), _rights("--group", options["groups"])
    with Admin(namesrv, connections=connections()) as admin:
        secret = _secret(new_secret)
        if secret is None and not all(find_account(table, account) for table in admin.accounts.tables(broker).values()):
            secret = _prompted_secret(account)
        admin.accounts.save(
            account,
            secret_key=secret,
            admin=options["admin"],
            from_addresses=options["addresses"],
            topics=topics,
            groups=groups,
            default_topic=options["other_topics"],
            default_group=options["other_groups"],
            broker=broker,
        )
    click.echo(f"account {account} is set")


@acl.command()
@click.argument("account")
@yes_option
@_broker_option
@with_admin
def delete(admin: Admin, account: str, yes: bool, broker: str | None) -> None:
    """Delete ACCOUNT: its later requests are refused."""
    if not yes:
        confirm(f"delete account {account}?")
    admin.accounts.delete(account, broker=broker)
    click.echo(f"account {account} is deleted")


@acl.command()
@click.argument("account")
@click.argument("topic", type=TOPIC_NAME)
@_broker_option
@with_admin
@output_option
def check(admin: Admin, account: str, topic: str, broker: str | None, output: str) -> None:
    """Show whether ACCOUNT may send to TOPIC and read it, and the setting that decides.

    To read, an account also needs SUB on a group.
    """
    rights = admin.accounts.rights(account, topic, broker=broker)
    rows = [
        {
            "broker": each.broker,
            "account": account,
            "topic": topic,
            "send": each.may_send,
            "read": each.may_read,
            "because": each.reason,
        }
        for each in rights
    ]
    show_rows(rows, output)


def _rights(option: str, texts: tuple[str, ...]) -> dict[str, str] | None:
    rights = {}
    for text in texts:
        name, equals, right = text.partition("=")
        if not name or not equals or (right and right not in RIGHTS):
            raise click.BadParameter(
                f"{text!r}: write NAME=RIGHT with {', '.join(RIGHTS)}, or NAME=", param_hint=option
            )
        rights[name] = right
    return rights or None


def _prompted_secret(account: str) -> str:
    """Prompt for a secret key without echo; from a pipe, read its first line."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().removeprefix("\ufeff").strip()  # as `secret_in` reads a file
    secret: str = click.prompt(f"secret key of {account}", hide_input=True, confirmation_prompt=True)
    return secret


def _secret(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.startswith("@"):
        raise click.BadParameter(
            "other users can read arguments in the process list: write the secret to a file, and give @FILE",
            param_hint="--new-secret",
        )
    return secret_in(text)
