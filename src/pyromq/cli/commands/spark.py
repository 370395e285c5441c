"""`pyromq spark`: jobs of the data pipeline, and what a query's checkpoint says.

Flags come from the jobs' tables of settings; pyspark is loaded when a job runs.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field
from functools import partial
from pathlib import Path
from typing import Any

import click

from pyromq.cli.asking import confirm
from pyromq.cli.connecting import connection_options, into_environment, namesrv_option
from pyromq.cli.progress import Progress
from pyromq.cli.render import one_line, output_option, show_rows
from pyromq.errors import MQError, UsageError
from pyromq.extras import install_command
from pyromq.spark.jobs.settings import JOBS, Summary, build, flags, is_required, pairs, run

PY4J_BEGINS = "An error occurred while calling "  # and nothing that anybody could use
RAISED = re.compile(r"^[A-Za-z_][\w.]*: .+$", re.MULTILINE)  # the end of a traceback, which itself is indented
NO_SPARK = f"Spark is not installed; to install it, besides Java 17 or 21: {install_command('spark')}"


@click.group()
def spark() -> None:
    """Run jobs on Spark: archive, replay, redrive, audit, metrics, mirror.

    Settings are flags, or a YAML file's (`--file`) under the flags' names with underscores; flags win.
    """


def _job_command(name: str, job: type) -> click.Command:
    options = [_flag(each, kind) for each, kind in flags(job)]
    options.append(
        click.Option(["--file"], type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Settings in YAML.")
    )
    command = click.Command(name, params=list(options), callback=partial(_run, name), help=job.__doc__)
    return connection_options(hidden=True)(output_option(command))


def _flag(each: Field[Any], kind: type) -> click.Option:
    name = _dashed(each.name)
    text = each.metadata["doc"]
    default = None if each.default is MISSING else each.default
    if is_required(each):
        text += "  [required]"
    elif default not in ("", (), False, None):
        text += f"  [default: {default}]"
    shared: dict[str, Any] = {"help": text, "default": None, "envvar": _ENVIRONMENT.get(each.name)}
    if kind is bool:
        return click.Option([name, each.name], is_flag=True, **shared)
    if kind is int:
        return click.Option([name, each.name], type=int, metavar="N", **shared)
    return click.Option([name, each.name], multiple=kind is not str, metavar="TEXT", **shared)


_ENVIRONMENT = {"namesrv": "NAMESRV_ADDR"}


def _run(name: str, file: Path | None, output: str, **given: Any) -> int:
    job = JOBS[name]
    with _usage(), _naming_flags(job, file):
        values = _from_file(file) | {key: value for key, value in given.items() if value not in (None, ())}
        settings = build(job, values)
    _check_java()
    into_environment()
    _choose_python(settings.session.master, settings.session.conf)
    with _naming_flags(job, file):
        summary = _guarded(lambda tell: run(name, settings, tell))
    show_rows(summary.rows, output, empty="no queues")
    for note in summary.notes:
        click.echo(note, err=True)
    return 1 if summary.failed else 0


@contextmanager
def _usage() -> Iterator[None]:
    """Make wrong settings wrong usage, with its exit code; what a job finds when it runs is a failure."""
    try:
        yield
    except UsageError as error:
        raise click.UsageError(one_line(error)) from error


@contextmanager
def _naming_flags(job: type, file: Path | None) -> Iterator[None]:
    """Let errors name the flags by which a command gives what they name; settings of a file are named as they are."""
    try:
        yield
    except MQError as error:
        if file is None:
            error.args = (_in_flags(str(error), job),)
        raise


def _in_flags(text: str, job: type) -> str:
    """Return a text with flags for settings, and with the flags for options of the source and the sink behind it."""
    from pyromq.spark.declared_options import names_of
    from pyromq.spark.read.options import ReadOptions
    from pyromq.spark.write.options import SinkOptions

    settings = {each.name for each, _ in flags(job)}
    for name in settings:
        called = rf"\bsetting {name}\b" + (rf"|\b{name}\b" if "_" in name else "")
        text = re.sub(called, _dashed(name), text)
    hints = []
    for name in dict.fromkeys([*names_of(ReadOptions), *names_of(SinkOptions)]):
        called = rf"\b{name}\b" if name.lower() != name else rf"\boptions? {name}\b"
        if re.search(called, text):
            if (setting := _SETTINGS.get(name, "")) in settings:
                hints.append(_dashed(setting))
            elif "option" in settings and name in names_of(ReadOptions):
                hints.append(f"--option {name}=VALUE")
            elif "to_option" in settings:
                hints.append(f"--to-option {name}=VALUE")
    return f"{text} (here: {', '.join(hints)})" if hints else text


_SETTINGS = {  # which stand for options of the source or the sink
    "namesrvAddr": "namesrv",
    "subscribe": "topics",
    "startingOffsets": "start",
    "maxOffsetsPerTrigger": "batch_rows",
    "group": "group",
    "jobId": "job",
    "delivery": "delivery",
    "topic": "to_topic",
}


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_java() -> None:
    """Raises `MQError` where there is none: Spark's scripts would print lines of their own."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home, "bin")) if home else None) is None:
        where = f"JAVA_HOME is {home}, and {home}/bin/java is not there" if home else "there is no java on the PATH"
        raise MQError(f"Spark needs Java 17 or 21, and {where}: install it, or set JAVA_HOME to where it is")


def _choose_python(master: str, conf: tuple[str, ...]) -> None:
    """Let Spark's workers be this Python: they are `python3` of the PATH otherwise, which knows nothing of us.

    Spark reads `spark.pyspark.python` only when `spark-submit` starts it. Executors elsewhere have their own Python.
    """
    wanted = pairs(conf).get("spark.pyspark.python")
    local = master.startswith("local")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if wanted or local:
        os.environ.setdefault("PYSPARK_PYTHON", wanted or sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            f"settings in YAML need pyyaml; to install it: {sys.executable} -m pip install pyyaml"
        ) from error
    try:
        values = yaml.safe_load(file.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise UsageError(f"{file} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file} must hold settings, `name: value`")
    return values


def _guarded(job: Callable[[Callable[[int], None]], Summary]) -> Summary:
    """Run a job with its progress on the terminal; what Spark raises becomes one line."""
    try:
        with Progress("messages") as progress:
            return job(progress.show)
    except ImportError as error:
        raise MQError(f"{NO_SPARK} ({error})") from error
    except Exception as error:
        raise _cause(error) from error


def _cause(error: Exception) -> Exception:
    """Spark wraps an error of ours into pages of traceback, whose last line has its class and text."""
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
        return error
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("pyromq.") and ": " in line]
    theirs = [line.removeprefix(": ") for line in lines if line and not line.startswith(PY4J_BEGINS)]
    return MQError((ours[-1:] or _raised(str(error))[-1:] or theirs[:1] or [type(error).__name__])[0])


def _raised(text: str) -> list[str]:
    """Return what Python raised in a task as `Name: text`, the error last; ` SQLSTATE` follows it."""
    traceback = text.partition("Traceback (most recent call last):")[2]
    return RAISED.findall(traceback.partition("\n SQLSTATE")[0])


@spark.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@namesrv_option
@click.option(
    "--reset", metavar="PLACE", help='Let the query go on at earliest, latest, or {"orders":{"broker-a":{"0":23}}}.'
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def describe(checkpoint: Path, namesrv: str, reset: str | None, yes: bool, output: str) -> None:
    """Show how far the query of folder CHECKPOINT is in each queue, against the brokers; or move it.

    The query must not run while it is moved.
    """
    from pyromq.spark.monitoring.checkpoint import describe as described
    from pyromq.spark.monitoring.checkpoint import read_checkpoint, reset_to
    from pyromq.spark.read.options import STREAM, read_options

    into_environment()
    if reset is not None:
        with _usage():
            read_options({"subscribePattern": ".*", "startingOffsets": reset}, STREAM)
            if not yes and not sys.stdin.isatty():
                raise UsageError("there is no terminal to ask at, and nothing is changed; add --yes")
        if not yes:
            confirm(f"set the query of {checkpoint} to {reset}?")
        reset_to(checkpoint, namesrv, reset)
    show_rows(described(read_checkpoint(checkpoint), namesrv), output, empty="the query has not begun yet")


@spark.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--topic", required=True, metavar="TOPIC", help="The topic that the pipeline begins with.")
@namesrv_option
def init(folder: Path, topic: str, namesrv: str) -> None:
    """Write a project for Spark's Declarative Pipelines into a new FOLDER: a topic into a table, a view over it."""
    from pyromq.names import check_topic
    from pyromq.spark.pipelines.template import write_project

    with _usage():
        check_topic(topic)
    for path in write_project(folder, topic=topic, namesrv=namesrv):
        click.echo(path)
    click.echo(f"run it with {folder / 'run'}", err=True)


for _name, _job in JOBS.items():
    spark.add_command(_job_command(_name, _job))
