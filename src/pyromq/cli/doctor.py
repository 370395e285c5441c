"""`pyromq doctor`: step by step from the name server to a topic's broker; says what is wrong and what to do."""

from __future__ import annotations

import click

from pyromq.cli.render import namesrv_option, output_option, show_rows
from pyromq.client.blocking import Admin


@click.command()
@click.option("--topic", help="Check this topic too.")
@namesrv_option
@output_option
@click.pass_context
def doctor(ctx: click.Context, topic: str | None, namesrv: str, output: str) -> int:
    """Find out why sending or consuming does not work. Exit code 1 when something is wrong."""
    findings = Admin.diagnose(namesrv, topic=topic)
    if output == "json":
        show_rows([{"check": f.name, "ok": f.ok, "text": f.text, "advice": f.advice} for f in findings], output)
    else:
        for finding in findings:
            click.echo(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.name}: {finding.text}")
            if finding.advice:
                click.echo(f"       -> {finding.advice}")
    return 0 if all(finding.ok for finding in findings) else 1
