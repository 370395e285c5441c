"""`pyromq doctor`: checks the way from the name server to a topic's brokers and advises on problems."""

from __future__ import annotations

import click

from pyromq import Admin
from pyromq.cli.cluster_names import TOPIC_NAME
from pyromq.cli.command_tree import Command
from pyromq.cli.connection_options import connections, namesrv_option
from pyromq.cli.render import output_option, show_rows
from pyromq.excerpt import escaped


@click.command(cls=Command)
@click.argument("topic", type=TOPIC_NAME, required=False)
@namesrv_option
@output_option
@click.pass_context
def doctor(ctx: click.Context, /, topic: str | None, namesrv: str, output: str) -> None:
    """Find out why sending or consuming does not work, for TOPIC if given.

    The exit code is 1 if a check fails.
    """
    findings = Admin.diagnose(namesrv, topic=topic, connections=connections())
    if output == "json":
        show_rows([{"check": f.name, "ok": f.ok, "text": f.text, "advice": f.advice} for f in findings], output)
    else:
        if ctx.get_parameter_source("namesrv") is click.core.ParameterSource.ENVIRONMENT:
            click.echo(f"name servers come from the environment variable NAMESRV_ADDR: {namesrv}", err=True)
        for finding in findings:
            click.echo(f"{'ok   ' if finding.ok else 'WRONG'}  {escaped(f'{finding.name}: {finding.text}')}")
            if finding.advice:
                click.echo(f"       -> {escaped(finding.advice)}")
    ctx.exit(0 if all(finding.ok for finding in findings) else 1)
