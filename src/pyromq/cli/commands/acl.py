"""`pyromq acl`: accounts of brokers with permissions, and what one may do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pyromq import Admin
from pyromq.cli.asking import confirm
from pyromq.cli.cluster_names import TOPIC_NAME
from pyromq.cli.connecting import connections, namesrv_option
from pyromq.cli.render import output_option, show_rows
from pyromq.client.admin.accounts import RIGHTS, find_account

_RIGHT = click.Choice(RIGHTS)
_broker_option = click.option("--broker", metavar="NAME", help="Only this broker. [default: all]")


@click.group()
def acl() -> None:
    """List, set, delete and check accounts of brokers with permissions.

    Asked as an administrator's account: `pyromq --access-key KEY --secret-key @FILE acl list`.
    """


@acl.command("list")
@_broker_option
@namesrv_option
@output_option
def list_accounts(broker: str | None, namesrv: str, output: str) -> None:
    """List accounts and their rights; secrets are never shown. The last rows are addresses that need no account."""
    with Admin(namesrv, connections=connections()) as admin:
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
@click.option("--new-secret", metavar="@FILE", help="The account's secret key, from a file. [default: asked for]")
@click.option("--admin/--no-admin", default=None, help="An administrator has all rights, unless there are others.")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME=RIGHT", help="PUB, SUB, PUB|SUB, DENY; nothing: default."
)
@click.option("--group", "groups", multiple=True, metavar="NAME=RIGHT", help="SUB, DENY; nothing: default.")
@click.option("--other-topics", type=_RIGHT, help="The right on topics without one of their own.")
@click.option("--other-groups", type=_RIGHT, help="The right on groups without one of their own.")
@click.option(
    "--from", "addresses", metavar="PATTERN", help="From these addresses it needs neither signature nor right."
)
@_broker_option
@namesrv_option
def set_account(account: str, new_secret: str | None, broker: str | None, namesrv: str, **options: Any) -> None:
    """Create ACCOUNT, or change what is given of it; all else stays."""
    topics, groups = _rights("--topic", options["topics"]), _rights("--group", options["groups"])
    with Admin(namesrv, connections=connections()) as admin:
        secret = _secret(new_secret)
        if secret is None and not all(find_account(table, account) for table in admin.accounts.tables(broker).values()):
            secret = _asked(account)
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
    click.echo(f"account {account} is in force")


@acl.command()
@click.argument("account")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_broker_option
@namesrv_option
def delete(account: str, yes: bool, broker: str | None, namesrv: str) -> None:
    """Delete ACCOUNT: what it asks from then on is refused."""
    with Admin(namesrv, connections=connections()) as admin:
        if not yes:
            confirm(f"delete account {account}?")
        admin.accounts.delete(account, broker=broker)
    click.echo(f"account {account} is deleted")


@acl.command()
@click.argument("account")
@click.argument("topic", type=TOPIC_NAME)
@_broker_option
@namesrv_option
@output_option
def check(account: str, topic: str, broker: str | None, namesrv: str, output: str) -> None:
    """Show whether ACCOUNT may send to TOPIC and read it, and which setting says so.

    Reading needs SUB on a group as well.
    """
    with Admin(namesrv, connections=connections()) as admin:
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


def _asked(account: str) -> str:
    """Ask for a secret key without showing it; from a pipe it is the first line."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    secret: str = click.prompt(f"secret key of {account}", hide_input=True, confirmation_prompt=True)
    return secret


def _secret(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.startswith("@"):
        raise click.BadParameter("write @FILE: an argument is in the list of processes", param_hint="--new-secret")
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{text[1:]} cannot be read: {error}", param_hint="--new-secret") from None
