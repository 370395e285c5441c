"""Asking before something that cannot be undone."""

from __future__ import annotations

import click

from pyromq.errors import UsageError


class Declined(UsageError):
    """The answer was no, or there was nobody to give one."""


def confirm(question: str) -> None:
    """Ask on the terminal. Raises `Declined` unless the answer is yes."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise
        click.echo(err=True)  # input ended behind the question
        raise Declined("nobody answered, so nothing is changed; --yes does not ask") from None
    if not agreed:
        raise Declined("nothing is changed")
