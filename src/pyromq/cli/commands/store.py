"""`pyromq store`: look at a stopped broker's data folder, repair it; let a running broker delete what has expired."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from pyromq import Admin
from pyromq.broker.config import BrokerConfig
from pyromq.cli.commands.clusters import addresses_of
from pyromq.cli.commands.messages.consume import as_record
from pyromq.cli.connecting import connections, namesrv_option
from pyromq.cli.properties import broker_settings, read_properties
from pyromq.cli.render import as_json, output_option, show_record, show_rows
from pyromq.clock import local_time
from pyromq.errors import ProtocolError, UsageError
from pyromq.excerpt import escaped
from pyromq.message import StoredMessage
from pyromq.plural import counted
from pyromq.remoting.bodies import (
    FILE,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupConfigTable,
    TopicConfigTable,
    decode_body,
)
from pyromq.remoting.bodies.body import Body
from pyromq.store.config import StoreConfig
from pyromq.store.directory import Directory
from pyromq.store.json_file import verified
from pyromq.store.offline.checking import Checking, Report
from pyromq.store.offline.log_walk import Damage, LogWalk
from pyromq.store.offline.repairing import Repairing
from pyromq.store.offline.stopped_store import Cure, Finding, StoppedStore, check_stopped
from pyromq.store.offline.stored_record import find_record, log_offset_of

F = TypeVar("F", bound=Callable[..., Any])

_TABLES: dict[str, type[Body]] = {
    "topics.json": TopicConfigTable,
    "subscriptionGroup.json": GroupConfigTable,
    "consumerOffset.json": ConsumerOffsetTable,
    "delayOffset.json": DelayOffsetTable,
}


@click.group()
def store() -> None:
    """Check, dump and repair the data folder of a stopped broker; let a running one delete expired messages.

    Folders of Java brokers can be looked at as well. File sizes are read from the files.
    """


def _folder(command: F) -> F:
    """Add the folder, and the settings file that may say more about it."""
    command = click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The broker's settings, if its log lies elsewhere or it has delay levels of its own.",
    )(command)
    return click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))(command)


def _config(folder: Path, config_file: Path | None) -> StoreConfig:
    if config_file is None:
        return StoreConfig(folder)
    properties = read_properties(config_file)
    properties.pop("storePathRootDir", None)
    settings = broker_settings(properties, data=folder, source=config_file)
    return BrokerConfig(**{"data": folder, **settings}).store_config


@store.command()
@_folder
@output_option
def check(folder: Path, config_file: Path | None, output: str) -> int:
    """Say what is wrong in FOLDER, file by file; nothing is changed.

    Reads every record, queue entry, index entry, waiting message and table. The exit code is 1 when something will
    not mend itself.
    """
    check_stopped(folder)
    config = _config(folder, config_file)
    with _progress_line(output) as tell:
        report = Checking(config, tell).run()
    report.findings += _of_tables(folder)
    return _tell(report, output, config)


@store.command()
@_folder
@output_option
def repair(folder: Path, config_file: Path | None, output: str) -> int:
    """Mend what can be mended in FOLDER, and say what was done.

    Sound records stay where they are. Queues and index are made again from the log. What is damaged in the log is
    filled; what was there before is kept in the folder `damaged`.
    """
    check_stopped(folder)
    directory = Directory(folder)
    config = _config(folder, config_file)
    StoppedStore(config)  # refuses what is no store before anything is written
    directory.lock()
    try:
        acts: list[str] = []
        with _progress_line(output) as tell:
            report = Repairing(config, acts.append, tell).run()
        report.findings += _of_tables(folder)
    finally:
        directory.unlock()
    if output == "table":
        click.echo("\n".join([*acts, f"{counted(len(acts), 'thing')} done"]))
    return _tell(report, output, config, acts=acts)


@store.command()
@_folder
@click.argument("offsets", type=click.IntRange(0), nargs=-1, metavar="[OFFSET]...")
@click.option("--topic", metavar="TOPIC", help="Only this topic. Offsets are those of a queue of it.")
@click.option("--queue", type=click.IntRange(0), metavar="ID", help="Only this queue; with offsets 0 if not given.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Without offsets: print so many, not all.")
@output_option
def dump(
    folder: Path,
    config_file: Path | None,
    offsets: tuple[int, ...],
    topic: str | None,
    queue: int | None,
    count: int | None,
    output: str,
) -> int:
    """Print the messages of FOLDER at these log OFFSETs, damaged ones too; without offsets all, one a line.

    JSON is one object a line.
    """
    check_stopped(folder)
    stopped = StoppedStore(_config(folder, config_file))
    if not offsets:
        return _dump_all(stopped, topic, queue, count=count)
    failed = False
    for number, offset in enumerate(offsets):
        log_offset = offset if topic is None else log_offset_of(stopped, topic, queue or 0, offset)
        message, fault = find_record(stopped, log_offset)
        record = _as_record(message) | {"fault": fault or None}
        failed = failed or bool(fault)
        if output == "json":
            click.echo(as_json(record))
        else:
            if number:
                click.echo()
            show_record(record, output)
    return 1 if failed else 0


@store.command()
@click.argument("broker", required=False)
@click.option(
    "--older-than",
    type=click.IntRange(0),
    metavar="HOURS",
    help="Delete what is older, not what the broker's setting fileReservedTime says.",
)
@namesrv_option
@output_option
def expire(broker: str | None, older_than: int | None, namesrv: str, output: str) -> None:
    """Let BROKER (a name or HOST:PORT), or all brokers, delete expired messages now.

    Whole log files go, the oldest first, never the last one, and none with messages that wait for delivery.
    """
    rows = []
    with Admin(namesrv, connections=connections()) as admin:
        for address in addresses_of(admin, broker):
            expired = admin.expire_log(address, older_than_hours=older_than)
            rows.append({"address": address, "files_deleted": expired.files, "needed_from": expired.kept_from})
    show_rows(rows, output, empty="no broker is registered")


# -- what a check says


def _tell(report: Report, output: str, config: StoreConfig, *, acts: list[str] | None = None) -> int:
    """Print a report; return the exit code."""
    bad = [finding for finding in report.findings if finding.cure not in (Cure.NOBODY, Cure.START)]
    if output == "json":
        record: dict[str, Any] = {
            "records": report.records,
            "log_begin": report.log_begin,
            "log_end": report.log_end,
            "newest": local_time(report.newest_ms),
            "findings": [_finding(each) for each in report.findings],
        }
        click.echo(as_json(record | ({} if acts is None else {"done": acts}), indent=2))
        return 1 if bad else 0
    for finding in report.findings:
        click.echo(escaped(str(finding)))
    if report.segment_bytes != config.segment_bytes:
        size = report.segment_bytes
        click.echo(f"the log files have {size} bytes: the broker's settings need mappedFileSizeCommitLog={size}")
    span = f"log offsets {report.log_begin} to {report.log_end}"
    click.echo(f"{counted(report.records, 'sound record')}, {span}: {_verdict(report, bad)}")
    return 1 if bad else 0


def _verdict(report: Report, bad: list[Finding]) -> str:
    if bad:
        return f"{counted(len(bad), 'thing')} {'is' if len(bad) == 1 else 'are'} wrong"
    return "nothing needs a repair" if report.findings else "nothing is wrong"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "file": str(finding.path),
        "byte": finding.position,
        "text": finding.text,
        "cure": finding.cure.name.lower(),
    }


def _of_tables(folder: Path) -> Iterator[Finding]:
    """Look through the tables of topics, groups and offsets; the broker goes on with the one before a damaged one."""
    for name, table in _TABLES.items():
        path = folder / "config" / name
        faults = {}
        for each in (path, path.with_name(f"{name}.bak")):
            try:
                if content := each.read_bytes():
                    decode_body(table, verified(content), FILE)
            except FileNotFoundError:
                continue
            except (ProtocolError, UnicodeDecodeError) as error:
                faults[each] = str(error)
        for each, fault in faults.items():
            only = len(faults) == 2 or not path.with_name(f"{name}.bak").exists()
            cure = Cure.BACKUP if each == path and only else Cure.START if each == path else Cure.NOBODY
            yield Finding(each, None, f"it is damaged: {fault}", cure)


@contextmanager
def _progress_line(output: str) -> Iterator[Callable[[int, int], None]]:
    """Give what tells a person how far the reading is, on a line that is cleared; programs are told nothing."""
    shown = output == "table" and sys.stderr.isatty()

    def tell(done: int, total: int) -> None:
        if shown:
            click.echo(f"\r{done / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB read", nl=False, err=True)

    try:
        yield tell
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)


# -- messages


def _dump_all(stopped: StoppedStore, topic: str | None, queue: int | None, *, count: int | None) -> int:
    left = count
    known = topic is None
    for found in LogWalk(stopped):
        if left == 0:
            break
        if isinstance(found, Damage):
            click.echo(f"log offsets {found.start} to {found.end} are damaged: {escaped(found.reason)}", err=True)
        elif topic in (None, found.topic) and queue in (None, found.queue_id):
            known = True
            click.echo(as_json(_as_record(found)))
            left = None if left is None else left - 1
    if not known and not _has_queue(stopped, topic, queue):
        which = f"topic {topic!r}" if queue is None else f"queue {queue} of topic {topic!r}"
        raise UsageError(f"there is no {which} in {stopped.root}")
    return 0


def _has_queue(stopped: StoppedStore, topic: str | None, queue: int | None) -> bool:
    return any(each.topic == topic and queue in (None, each.queue_id) for each in stopped.queues())


def _as_record(message: StoredMessage) -> dict[str, Any]:
    try:
        record = as_record(message)
    except UsageError:  # its body cannot be unpacked
        record = {"topic": message.topic, "queue": message.queue_id, "queue_offset": message.queue_offset}
    del record["broker"]
    return {"log_offset": message.log_offset, "size": message.size, "sys_flag": message.sys_flag, **record}
