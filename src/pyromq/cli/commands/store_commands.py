"""`pyromq store`: checks, dumps and repairs a stopped broker's data folder; expires messages of a running broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from pyromq import Admin
from pyromq.broker.config import BrokerConfig
from pyromq.cli.command_tree import Group
from pyromq.cli.commands.cluster_commands import addresses_of
from pyromq.cli.commands.messages.consume import as_record
from pyromq.cli.connection_options import connections, namesrv_option
from pyromq.cli.ranges import WholeNumber
from pyromq.cli.render import as_json, output_option, show_record, show_rows
from pyromq.cli.server_properties import broker_settings, read_properties
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
from pyromq.store.directory import Directory
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.json_file import verified
from pyromq.store.log.log_walk import Damage
from pyromq.store.log_cut import kept_files, kept_messages
from pyromq.store.offline.stopped_store import Cure, StoppedStore, StoreFault, check_stopped
from pyromq.store.offline.store_check import Report, StoreCheck
from pyromq.store.offline.store_repair import StoreRepair
from pyromq.store.store_config import StoreConfig

F = TypeVar("F", bound=Callable[..., Any])

_TABLES: dict[str, type[Body]] = {
    "topics.json": TopicConfigTable,
    "subscriptionGroup.json": GroupConfigTable,
    "consumerOffset.json": ConsumerOffsetTable,
    "delayOffset.json": DelayOffsetTable,
}


@click.group(cls=Group)
def store() -> None:
    """Check, dump and repair the data folder of a stopped broker; delete expired messages of a running one.

    Folders of Java brokers work too. File sizes are read from the files.
    """


def _folder(command: F) -> F:
    """Add the argument FOLDER and the option `--config`."""
    command = click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The broker's settings file, if the log is in another folder or delay levels differ.",
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
    """Report damage in FOLDER by file, without changing anything.

    Reads every record, queue entry, index entry, scheduled message and table. The exit code is 1 if there is damage
    that the broker's next start does not repair.
    """
    check_stopped(folder)
    config = _config(folder, config_file)
    with _gibibytes_read(output) as show_progress:
        report = StoreCheck(config, show_progress).run()
    report.findings += _table_findings(folder)
    return _show_report(report, output, config)


@store.command()
@_folder
@output_option
def repair(folder: Path, config_file: Path | None, output: str) -> int:
    """Repair FOLDER and report each step.

    Sound records keep their place. Queues and index are rebuilt from the log. Damaged stretches of the log are
    overwritten by filler; their bytes are saved in the folder `damaged`.
    """
    check_stopped(folder)
    directory = Directory(folder)
    config = _config(folder, config_file)
    StoppedStore(config)  # raises if the folder is not a store, before anything is written
    directory.lock()
    try:
        acts: list[str] = []
        with _gibibytes_read(output) as show_progress:
            report = StoreRepair(config, acts.append, show_progress).run()
        report.findings += _table_findings(folder)
    finally:
        directory.unlock()
    if output == "table":
        click.echo("\n".join([*acts, f"{counted(len(acts), 'repair')} done"]))
    return _show_report(report, output, config, acts=acts)


@store.command()
@_folder
@click.argument("offsets", type=WholeNumber(0), nargs=-1, metavar="[OFFSET]...")
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic; OFFSETs are queue offsets then.")
@click.option("-q", "--queue", type=WholeNumber(0), metavar="ID", help="Only this queue. [default with OFFSETs: 0]")
@click.option("-c", "--count", type=WholeNumber(1), help="Without OFFSETs: print at most this many.")
@click.option("--cut", is_flag=True, help="Print what was cut off this replica's log when another became master.")
@output_option
def dump(
    folder: Path,
    config_file: Path | None,
    offsets: tuple[int, ...],
    topic: str | None,
    queue: int | None,
    count: int | None,
    cut: bool,
    output: str,
) -> int:
    """Print the messages of FOLDER at these log OFFSETs, including damaged ones.

    Without offsets all intact messages are printed, one a line. JSON is one object a line.
    """
    check_stopped(folder)
    stopped = StoppedStore(_config(folder, config_file))
    if cut and offsets:
        raise UsageError("--cut prints all cut messages: leave out the OFFSETs")
    if cut:
        kept = (message for file in kept_files(folder, LOCAL_DISK) for message in kept_messages(file, LOCAL_DISK))
        _print_some(kept, topic, queue, count=count)
        return 0
    if not offsets:
        return _dump_all(stopped, topic, queue, count=count)
    failed = False
    for number, offset in enumerate(offsets):
        log_offset = offset if topic is None else stopped.log_offset_of(topic, queue or 0, offset)
        message, fault = stopped.find_record(log_offset)
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
    type=WholeNumber(0),
    metavar="HOURS",
    help="Age of expired messages, instead of the broker's setting fileReservedTime.",
)
@namesrv_option
@output_option
def expire(broker: str | None, older_than: int | None, namesrv: str, output: str) -> None:
    """Delete expired messages on BROKER (a name or HOST:PORT), or on all brokers, now.

    Brokers delete whole log files, the oldest first. The last file and files with undelivered scheduled messages stay.
    """
    rows = []
    with Admin(namesrv, connections=connections()) as admin:
        for address in addresses_of(admin, broker):
            expired = admin.expire_log(address, older_than_hours=older_than)
            rows.append({"address": address, "files_deleted": expired.files, "needed_from": expired.kept_from})
    show_rows(rows, output, empty="no broker is registered")


# -- reports


def _show_report(report: Report, output: str, config: StoreConfig, *, acts: list[str] | None = None) -> int:
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
        click.echo(f"the log files have {size} bytes: set mappedFileSizeCommitLog={size} for the broker")
    span = f"log offsets {report.log_begin} to {report.log_end}"
    click.echo(f"{counted(report.records, 'intact record')}, {span}: {_verdict(report, bad)}")
    return 1 if bad else 0


def _verdict(report: Report, bad: list[StoreFault]) -> str:
    if bad:
        return f"{counted(len(bad), 'problem')} found"
    return "no repair needed" if report.findings else "no problems found"


def _finding(finding: StoreFault) -> dict[str, Any]:
    return {
        "file": str(finding.path),
        "byte": finding.position,
        "text": finding.text,
        "cure": finding.cure.name.lower(),
    }


def _table_findings(folder: Path) -> Iterator[StoreFault]:
    """Check the tables of topics, groups and offsets. A broker replaces a damaged table by its `.bak`."""
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
            yield StoreFault(each, None, f"it is damaged: {fault}", cure)


@contextmanager
def _gibibytes_read(output: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that shows the bytes read and their total on one line, if standard error is a terminal."""
    shown = output == "table" and sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if shown:
            click.echo(f"\r{done / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB read", nl=False, err=True)

    try:
        yield show
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)


# -- messages


def _dump_all(stopped: StoppedStore, topic: str | None, queue: int | None, *, count: int | None) -> int:
    known = _print_some(stopped.walk(), topic, queue, count=count) or topic is None
    if not known and not _has_queue(stopped, topic, queue):
        which = f"topic {topic!r}" if queue is None else f"queue {queue} of topic {topic!r}"
        raise UsageError(f"there is no {which} in {stopped.root}")
    return 0


def _print_some(
    found: Iterable[StoredMessage | Damage], topic: str | None, queue: int | None, *, count: int | None
) -> bool:
    """Print the wanted messages, and all damage. Return True if there was a wanted message."""
    left, known = count, False
    for each in found:
        if left == 0:
            break
        if isinstance(each, Damage):
            click.echo(f"log offsets {each.start} to {each.end} are damaged: {escaped(each.reason)}", err=True)
        elif topic in (None, each.topic) and queue in (None, each.queue_id):
            known = True
            click.echo(as_json(_as_record(each)))
            left = None if left is None else left - 1
    return known


def _has_queue(stopped: StoppedStore, topic: str | None, queue: int | None) -> bool:
    return any(each.entries.topic == topic and queue in (None, each.entries.queue_id) for each in stopped.queues())


def _as_record(message: StoredMessage) -> dict[str, Any]:
    try:
        record = as_record(message)
    except UsageError:  # the body of the message cannot be decompressed
        record = {"topic": message.topic, "queue": message.queue_id, "queue_offset": message.queue_offset}
    del record["broker"]
    return {"log_offset": message.log_offset, "size": message.size, "sys_flag": message.sys_flag, **record}
