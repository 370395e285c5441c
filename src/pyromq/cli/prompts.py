"""Prompts the user for a decision before an irreversible change."""

from __future__ import annotations

import click

from pyromq.errors import UsageError

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


class Declined(UsageError):
    """The user answered no, or standard input ended before an answer."""


def confirm(question: str) -> None:
    """Ask the user a question on the terminal. Raises `Declined` unless the answer is yes."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise
        click.echo(err=True)  # a line end, because the input ended on the line of the question
        raise Declined("standard input ended without an answer, so nothing is changed; --yes does not ask") from None
    if not agreed:
        raise Declined("nothing is changed")
