"""The names that UPGRADING.md promises to keep, as the newest release has them: `promised_names.txt`.

    python -m tests.documentation.promised_names

writes the file again before a release; `--check` fails if the file is not up to date. UPGRADING.md says how long a name
stays.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import click
from tests.metrics.families import FAMILIES

import pyromq
from pyromq.broker.config import SETTINGS as BROKER
from pyromq.cli.command_tree import commands_below
from pyromq.cli.main import pyromq as command_line
from pyromq.cli.tls_settings import CLIENT_NAMES, SERVER_NAMES
from pyromq.metrics.config import SETTINGS as METRICS
from pyromq.nameserver.name_server_config import SETTINGS as NAME_SERVER
from pyromq.remoting.header import request_headers, wire_layout

RECORD = Path(__file__).with_name("promised_names.txt")
OWN_CODES = range(100_300, 101_000)  # requests that only pyromq has


def promised() -> dict[str, set[str]]:
    """Return the names by what has them, for example the options of one command."""
    groups: dict[str, set[str]] = {
        "names of pyromq": set(pyromq.__all__),
        "settings of a broker": {*BROKER, *METRICS, *SERVER_NAMES, *CLIENT_NAMES},
        "settings of a name server": {*NAME_SERVER, *METRICS, *SERVER_NAMES},
        **{f"metric {each.name}": set(each.labels) for each in FAMILIES},
    }
    for name in pyromq.__all__:
        if inspect.isclass(kind := getattr(pyromq, name)):
            groups[f"names of pyromq.{name}"] = set(_members(kind))
    context = command_line.make_context("pyromq", ["help"], resilient_parsing=True)
    for command in (command_line, *commands_below(context, command_line)):
        options = (each.opts + each.secondary_opts for each in command.params if isinstance(each, click.Option))
        groups[" ".join(("options of pyromq", *command.path))] = {name for names in options for name in names}
    for code, header in request_headers().items():
        if code in OWN_CODES:
            groups[f"fields of request {code}"] = {field.wire_name for field in wire_layout(header)}
            if header.reply_header:
                reply = wire_layout(header.reply_header)
                groups[f"fields of the reply to {code}"] = {field.wire_name for field in reply}
    return groups


def recorded() -> dict[str, set[str]]:
    lines = (line.partition(":") for line in RECORD.read_text("utf-8").splitlines())
    return {group: set(names.split()) for group, _, names in lines}


def vanished() -> list[str]:
    """Return the recorded names that do not exist any more."""
    now = promised()
    return [
        *(f"{group}: all" for group in recorded().keys() - now.keys()),
        *(f"{group}: {name}" for group, names in recorded().items() for name in names - now.get(group, names)),
    ]


def write() -> None:
    lines = (" ".join((f"{group}:", *sorted(names))) for group, names in sorted(promised().items()))
    RECORD.write_text("\n".join(lines) + "\n", "utf-8")


def _members(kind: type) -> Iterator[str]:
    """Yield the public names of a class, without what its bases of Python have."""
    bases = {name for base in kind.__mro__ if base.__module__ == "builtins" for name in vars(base)}
    yield from (name for name in dir(kind) if not name.startswith("_") and name not in bases)
    if is_dataclass(kind):
        yield from (field.name for field in fields(kind) if not field.name.startswith("_"))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        write()
    elif promised() != recorded():
        sys.exit(f"{RECORD.name} does not have the names of this version: python -m tests.documentation.promised_names")
