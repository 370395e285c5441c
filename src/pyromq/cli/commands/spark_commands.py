"""`pyromq spark`: runs data pipeline jobs, describes and resets a query's checkpoint.

Flags come from the jobs' settings. pyspark is imported when a job runs.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field
from functools import partial
from pathlib import Path
from typing import Any

import click

from pyromq.cli.command_tree import Command, Group
from pyromq.cli.connection_options import connection_options, export_to_environment, namesrv_option
from pyromq.cli.progress_line import ProgressLine
from pyromq.cli.prompts import confirm, yes_option
from pyromq.cli.ranges import Folder
from pyromq.cli.render import one_line, output_option, show_rows
from pyromq.errors import MQError, UsageError
from pyromq.extras import install_command
from pyromq.spark.jobs.setting_checks import pairs
from pyromq.spark.jobs.settings import JOBS, Summary, build, flags, is_required, run

PY4J_BEGINS = "An error occurred while calling "  # py4j's first line, which does not name the cause
CAUSED_BY = "Caused by: "  # begins the line of an inner exception in a Java stack trace
RAISED = re.compile(r"^[A-Za-z_][\w.]*: .+$", re.MULTILINE)  # last line of a traceback; the others are indented
READ_THE_REST = "; set failOnDataLoss to false to read the rest"  # advice for a read
PAIRS = ("option", "to_option")  # settings that are lists of options, NAME=VALUE, of the source and of the sink
NO_SPARK = f"Spark is not installed; it needs Java 17 or 21, and: {install_command('spark')}"


@click.group(cls=Group)
def spark() -> None:
    """Run jobs on Spark: archive, replay, redrive, audit, metrics, mirror.

    Settings come from flags, or from a YAML file (`--file`) that names them with underscores. Flags override the file.
    """


def _job_command(name: str, job: type) -> click.Command:
    options = [_flag(each, kind) for each, kind in flags(job)]
    options.append(
        click.Option(["--file"], type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Settings in YAML.")
    )
    command = Command(name, params=list(options), callback=partial(_run, name), help=job.__doc__)
    return connection_options(hidden=True)(output_option(command))


def _flag(each: Field[Any], kind: type) -> click.Option:
    names = [*_LETTERS.get(each.name, ()), _dashed(each.name), each.name]
    description = each.metadata["doc"]
    default = None if each.default is MISSING else each.default
    if is_required(each):
        description += "  [required]"
    elif default not in ("", (), False, None):
        description += f"  [default: {default}]"
    shared: dict[str, Any] = {"help": description, "default": None, "envvar": _ENVIRONMENT.get(each.name)}
    if kind is bool:
        return click.Option(names, is_flag=True, **shared)
    if kind is int:
        return click.Option(names, type=int, metavar="N", **shared)
    return click.Option(names, multiple=kind is not str, metavar="TEXT", **shared)


_ENVIRONMENT = {"namesrv": "NAMESRV_ADDR"}
_LETTERS = {"namesrv": ("-n",), "group": ("-g",), "topic": ("-t",), "key": ("-k",)}  # as at all other commands


def _run(name: str, file: Path | None, output: str, **given: Any) -> int:
    from pyromq.spark.jobs.job_checks import check_job

    job = JOBS[name]
    export_to_environment()
    with _usage(), _naming_flags(job, file, given):
        values = _from_file(file) | {key: value for key, value in given.items() if value not in (None, ())}
        settings = build(job, values)
        check_job(name, settings)
    _check_java()
    _choose_python(settings.session.master, settings.session.conf)
    with _naming_flags(job, file, given), quiet_py4j():
        summary = _with_progress(lambda show: run(name, settings, show))
    show_rows(summary.rows, output, empty="no queues")
    for note in summary.notes:
        click.echo(note, err=True)
    return 1 if summary.failed else 0


@contextmanager
def _usage() -> Iterator[None]:
    """Turn an error into `click.UsageError`, with exit code 2: the settings are wrong. Failed jobs exit with 1."""
    try:
        yield
    except MQError as error:
        raise click.UsageError(one_line(error)) from error


@contextmanager
def _naming_flags(job: type, file: Path | None, given: Mapping[str, Any]) -> Iterator[None]:
    """Let errors name flags instead of settings, unless the settings come from a file."""
    try:
        yield
    except MQError as error:
        if file is None:
            error.args = (_in_flags(str(error), job, given),)
        raise


def _in_flags(message: str, job: type, given: Mapping[str, Any]) -> str:
    """Return an error message with settings replaced by flags. Flags for options of source and sink are appended.

    An option that only `--to-option` has `given` gets this flag.
    """
    from pyromq.spark.options import names_of
    from pyromq.spark.read.read_options import ReadOptions
    from pyromq.spark.write.sink_options import SinkOptions

    settings = {each.name: each.metadata["option"] for each, _ in flags(job)}
    flag_of = {option: _dashed(name) for name, option in settings.items() if option}
    for name in settings:
        called = rf"\bsetting {name}\b" + (rf"|\b{name}\b" if "_" in name else "")
        message = re.sub(called, _dashed(name), message)
    of_source, of_target = (
        {pair.partition("=")[0].strip().lower() for pair in given.get(each) or ()} for each in PAIRS
    )
    hints = []
    for name in dict.fromkeys([*names_of(ReadOptions), *names_of(SinkOptions)]):
        called = rf"\b{name}\b" if name.lower() != name else rf"\boptions? {name}\b"
        if re.search(called, message):
            if name.lower() in of_target - of_source:
                hints.append(f"--to-option {name}=VALUE")
            elif name in flag_of:
                hints.append(flag_of[name])
            elif "option" in settings and name in names_of(ReadOptions):
                hints.append(f"--option {name}=VALUE")
            elif "to_option" in settings:
                hints.append(f"--to-option {name}=VALUE")
    hints = [hint for hint in hints if not re.search(rf"(?<![\w-]){hint.split()[0]}\b", message)]
    return f"{message} (here: {', '.join(hints)})" if hints else message


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def quiet_py4j() -> Iterator[None]:
    """Drop the log lines of py4j about calls to Java that Ctrl-C interrupts: pages of Python's stack traces."""

    def is_shown(record: logging.LogRecord) -> bool:
        return not record.getMessage().endswith("while sending command.")

    root = logging.root  # py4j logs these lines there
    root.addFilter(is_shown)
    try:
        yield
    finally:
        root.removeFilter(is_shown)


def _check_java() -> None:
    """Raise `MQError` if Java is missing: Spark's scripts would print several lines instead."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home, "bin")) if home else None) is None:
        where = f"JAVA_HOME is {home}, and {home}/bin/java does not exist" if home else "there is no java on the PATH"
        raise MQError(f"Spark needs Java 17 or 21, and {where}: install it, or set JAVA_HOME to its folder")


def _choose_python(master: str, conf: tuple[str, ...]) -> None:
    """Run Spark's workers with this Python: by default they run `python3` of the PATH, which may lack pyromq.

    Spark reads `spark.pyspark.python` only if `spark-submit` starts it. Executors on other machines use their own
    Python.
    """
    wanted = pairs(conf).get("spark.pyspark.python")
    local = master.startswith("local")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if wanted:  # as in `spark-submit`, the setting overrides the environment
        os.environ["PYSPARK_PYTHON"] = wanted
    elif local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid date
        raise UsageError(f"{file} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file} must hold settings, `name: value`")
    return values


def _with_progress(job: Callable[[Callable[[int], None]], Summary]) -> Summary:
    """Run a job with its progress on the terminal. Spark's errors become one line."""
    try:
        with ProgressLine("messages") as progress:
            return job(progress.show)
    except ImportError as error:
        raise MQError(f"{NO_SPARK} ({error})") from error
    except Exception as error:
        raise _cause(error) from error


def _cause(error: Exception) -> Exception:
    """Return the error that Spark wrapped in a traceback.

    The last line of the traceback has the class and message of an error of pyromq.
    """
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
        return error
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("pyromq.") and ": " in line]
    theirs = [line.removeprefix(": ") for line in lines if line and not line.startswith(PY4J_BEGINS)]
    if theirs and theirs[0].endswith(":"):  # the message is in the exceptions behind it
        causes = [line.removeprefix(CAUSED_BY).partition(": ")[2] for line in lines if line.startswith(CAUSED_BY)]
        theirs = [*filter(None, reversed(causes)), *theirs]
    return MQError((ours[-1:] or _raised(str(error))[-1:] or theirs[:1] or [type(error).__name__])[0])


def _raised(message: str) -> list[str]:
    """Return the exceptions of a task's traceback as `Name: message`, the outermost last. ` SQLSTATE` follows it."""
    traceback = message.partition("Traceback (most recent call last):")[2]
    return RAISED.findall(traceback.partition("\n SQLSTATE")[0])


@spark.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@namesrv_option
@click.option(
    "--reset", metavar="PLACE", help="Set the query to earliest, latest, or the offsets of each queue as JSON."
)
@yes_option
@output_option
def describe(checkpoint: Path, namesrv: str, reset: str | None, yes: bool, output: str) -> None:
    """Show the offsets and lag of the query with checkpoint folder CHECKPOINT, by queue; or reset them.

    Stop the query before a reset.
    """
    from pyromq.spark.monitoring.query_checkpoint import check_place, read_checkpoint, reset_to
    from pyromq.spark.monitoring.query_checkpoint import describe as described

    export_to_environment()
    if reset is not None:
        with _usage(), _naming_reset():
            check_place(reset)
            if not yes and not sys.stdin.isatty():
                raise UsageError("there is no terminal for a confirmation, and nothing is changed; add --yes")
        if not yes:
            confirm(f"set the query of {checkpoint} to {reset}?")
        with _naming_reset():
            reset_to(checkpoint, namesrv, reset)
    show_rows(described(read_checkpoint(checkpoint), namesrv), output, empty="the query has not started yet")


@contextmanager
def _naming_reset() -> Iterator[None]:
    """Let errors name --reset instead of options of the source, which this command does not have."""
    try:
        yield
    except MQError as error:
        text = re.sub(r"(option )?\bstartingOffsets\b", "--reset", str(error))
        error.args = (text.replace("earliest, latest, group, or", "earliest, latest, or").removesuffix(READ_THE_REST),)
        raise


@spark.command()
@click.argument("folder", type=Folder())
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Source topic of the pipeline.")
@namesrv_option
def init(folder: Path, topic: str, namesrv: str) -> None:
    """Write a project for Spark's Declarative Pipelines into a new FOLDER: a table of TOPIC, and a view of it."""
    from pyromq.client.cluster.name_servers import addresses_of
    from pyromq.names import check_topic
    from pyromq.spark.pipeline_template import write_project

    with _usage():
        check_topic(topic)
        addresses_of(namesrv)
    for path in write_project(folder, topic=topic, namesrv=namesrv):
        click.echo(path)
    click.echo(f"run it with {folder / 'run'}", err=True)


for _name, _job in JOBS.items():
    spark.add_command(_job_command(_name, _job))
