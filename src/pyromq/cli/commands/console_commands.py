"""`pyromq console`: runs the web console and manages its accounts."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import connections, metrics_options, namesrv_option
from pyromq.cli.ranges import Folder, WholeNumber
from pyromq.cli.render import output_option, show_rows
from pyromq.cli.server_properties import metrics_config
from pyromq.errors import UsageError
from pyromq.extras import install_command, is_installed

if TYPE_CHECKING:
    from pyromq.console.security.console_accounts import ConsoleAccounts

DEFAULT_DATA = Path("pyromq-console")

_DATA = click.option(
    "--data",
    type=Folder(),
    default=DEFAULT_DATA,
    show_default=True,
    help="Folder of accounts, saved searches and audit log, created if missing.",
)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=Group, invoke_without_command=True)
@namesrv_option
@_DATA
@click.option("--host", default="127.0.0.1", show_default=True, metavar="IP", help="Address to listen on.")
@click.option("--port", type=WholeNumber(0, 65535), metavar="PORT", help="[default: 8876; 0: any free]")
@click.option("--name", "names", multiple=True, help="Host name accepted in requests, besides the address.")
@click.option("--cert", type=_FILE, metavar="FILE", help="Server certificate (PEM), for HTTPS.")
@click.option("--key", type=_FILE, metavar="FILE", help="Private key of --cert, if in another file.")
@click.option("--behind-tls", is_flag=True, help="A reverse proxy provides HTTPS.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="IP",
    help="Address or network of that proxy, whose X-Forwarded-For is trusted. [default: this machine]",
)
@metrics_options
# used by `serve --console`: when it ends, the input closes
@click.option("--ends-with-input", is_flag=True, hidden=True)
@click.pass_context
def console(
    ctx: click.Context,
    /,
    namesrv: str,
    data: Path,
    host: str,
    port: int | None,
    names: tuple[str, ...],
    cert: Path | None,
    key: Path | None,
    behind_tls: bool,
    proxies: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str | None,
    ends_with_input: bool,
) -> None:
    """Run the web console, on loopback, until Ctrl-C.

    Any other --host needs accounts (`console account set`) and TLS.
    """
    if ctx.invoked_subcommand is not None:
        return
    check_installed()
    from pyromq.console.console_config import ConsoleConfig
    from pyromq.console.console_server import serve
    from pyromq.net.tls.tls_server import ServerTlsConfig

    if cert is not None:
        ServerTlsConfig(certificate=cert, key=key).context()  # raises `UsageError`, which names file and reason
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    config = ConsoleConfig(
        namesrv,
        data,
        host=host,
        connections=connections(waits=True),
        tls_cert=cert,
        tls_key=key,
        behind_tls=behind_tls,
        names=names,
        metrics=metrics_config({}, port=metrics_port, host=metrics_host),
    )
    if proxies:
        if not behind_tls:
            raise click.UsageError("--proxy is the address of a proxy that provides HTTPS: give --behind-tls too")
        config = replace(config, proxies=proxies)
    if port is not None:
        config = replace(config, port=port)
    # The console accepts connections by readers of the event loop, which the usual loop of Windows does not have.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(serve(config, _print_address, ends_with_input=ends_with_input))


@console.group("account")
def account() -> None:
    """List, set and delete the console's accounts."""


@account.command("list")
@_DATA
@output_option
def list_accounts(data: Path, output: str) -> None:
    """List accounts and their roles."""
    found = _accounts(data).all() if (data / "accounts.json").exists() else []
    rows = [{"name": each.name, "role": each.role, "access_key": each.access_key} for each in found]
    show_rows(rows, output, empty=f"no accounts in {data}: every visitor of its console may do everything")


@account.command("set")
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), help="Rights of the account.")
@click.option(
    "--password-file", type=click.File("r"), help="File with the password; - is standard input. [default: prompt]"
)
@_DATA
def set_account(name: str, role: str | None, password_file: TextIO | None, data: Path) -> None:
    """Create account NAME, or change its role or password.

    Takes effect immediately, and ends the account's sessions.
    """
    accounts = _accounts(data)
    if password_file is not None:
        password = password_file.read().rstrip("\n")
        if not password:  # a prompt's empty answer keeps the password
            raise click.UsageError("the file of the password is empty")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, default="", show_default=False)
    saved = accounts.save(name, role=role, password=password or None)
    click.echo(f"account {saved.name} is saved in {data}: {saved.role}")


@account.command("delete")
@click.argument("name")
@_DATA
def delete_account(name: str, data: Path) -> None:
    """Delete account NAME."""
    _accounts(data).delete(name)
    click.echo(f"account {name} is deleted")


def _accounts(data: Path) -> ConsoleAccounts:
    check_installed()
    from pyromq.console.security.console_accounts import ConsoleAccounts

    return ConsoleAccounts(data / "accounts.json")


def check_installed() -> None:
    """Raise `UsageError` with the install command if a package of the console is missing."""
    if not is_installed("starlette", "uvicorn", "jinja2", "argon2", "python_multipart"):
        raise UsageError(f"the console needs more packages; to install them: {install_command('console')}")


def _print_address(what: str, address: str) -> None:
    click.echo(f"{what:<12} {address}")
    sys.stdout.flush()
