"""Checks a job before Spark starts: its options, its settings of Spark, and the files that it reads. No Spark here.

A job refuses an option that one of its settings sets, that the job sets itself, or that has no effect on the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from shutil import which
from typing import Any

from pyromq.client.cluster.environment import connections_of
from pyromq.errors import UsageError
from pyromq.spark.given_options import ENDPOINTS
from pyromq.spark.jobs.job_options import BY_TIME, COPIES, StreamJob, reads_and_writes
from pyromq.spark.jobs.setting_checks import local_path, pairs
from pyromq.spark.jobs.settings import Archive, Audit, Metrics, Mirror, Redrive, Replay, SessionSettings
from pyromq.spark.options import NAME_SERVERS, names_of
from pyromq.spark.read.read_options import ReadOptions

_TOPICS = ("subscribe", "subscribePattern", "assign")
_OF_AUDIT = ("requiredBrokers", "retiredBrokers", "deadlineMs", "failOnDataLoss")  # source options that an audit uses
_PLACE = ("topic", "brokerName", "queueId", "queueOffset")
_COPIED = (*_PLACE, "body", "tags", "keys", "properties", "bornTimestamp", "flag")
# Source columns that a job uses. Those of an archive equal `NEEDED` of archive_files, which imports pyarrow.
NEEDED: dict[type, tuple[str, ...]] = {
    Archive: (*_PLACE, "storeTimestamp"),
    Metrics: ("topic", "tags", "body", "bornTimestamp", "storeTimestamp"),
    Mirror: _COPIED,
    Redrive: (*_COPIED, "storeTimestamp"),
}

Refused = dict[str, str]  # by name of an option or of a setting of Spark: why a job refuses it


def check_job(job: str, settings: Any) -> None:
    """Raise the `MQError` of an option, setting of Spark or file that the job would fail on, override or ignore."""
    _refuse("setting of Spark", settings.session.conf, _refused_conf(settings), given_by="conf")
    _check_python(settings.session)
    if isinstance(settings, StreamJob):
        _refuse("option", settings.stream.option, _refused_of_stream(settings), given_by="option")
        _check_beginning(settings)
        _check_lag_files(settings)
    if isinstance(settings, Redrive | Audit):
        refused = _refused_of_redrive() if isinstance(settings, Redrive) else _refused_of_audit(settings)
        _refuse("option", settings.option, refused, given_by="option")
    if isinstance(settings, Mirror):
        _refuse("option", settings.to_option, _refused_of_target(settings), given_by="to_option")
    if isinstance(settings, Audit | Replay) and settings.archive:
        _check_archive(settings)
    for options in reads_and_writes(job, settings):
        connections = options.connecting.connections() or connections_of(None)
        if connections.tls is not None:
            connections.tls.context()  # raises `UsageError` for a file that is no certificate or no key
        if isinstance(options, ReadOptions) and options.columns:
            _check_columns(options.columns, NEEDED[type(settings)])


def _refuse(kind: str, given: tuple[str, ...], refused: Refused, *, given_by: str) -> None:
    """Raise `UsageError` for a refused name. `given` are strings NAME=VALUE of setting `given_by`."""
    names = {name.lower() for name in pairs(given)}
    for name, reason in refused.items():
        if name.lower() in names:
            raise UsageError(f"{kind} {name} {reason}; leave it out of setting {given_by}")


def _refused_conf(settings: Any) -> Refused:
    refused = {"spark.pyspark.driver.python": "has no effect: the driver runs already"}
    refused |= _set_by("master", ["spark.master"])
    if isinstance(settings, StreamJob):
        refused |= _set_by("checkpoint", ["spark.sql.streaming.checkpointLocation"])
    if isinstance(settings, Audit | Replay):
        inference = "spark.sql.sources.partitionColumnTypeInference.enabled"
        refused[inference] = "is set by the job: topics and dates in an archive's folders are strings"
    return refused


def _refused_of_stream(settings: StreamJob) -> Refused:
    refused = _set_by("namesrv", [NAME_SERVERS, ENDPOINTS]) | _set_by("topics", _TOPICS) | _of_settings(settings.stream)
    refused |= {"onUndecodable": _raw("copied" if not isinstance(settings, Metrics) else "counted")}
    if not isinstance(settings, Archive):
        refused["systemProperties"] = "has no effect: the job does not use RocketMQ's own properties"
    return refused


def _refused_of_redrive() -> Refused:
    refused = _set_by("namesrv", [NAME_SERVERS, ENDPOINTS]) | _set_by("group", _TOPICS)
    refused["systemProperties"] = "is set by the job: a property of RocketMQ has a dead letter's original topic"
    return refused | {"onUndecodable": _raw("sent")}


def _refused_of_audit(settings: Audit) -> Refused:
    namesrv, topics = ("source_namesrv", "mirror") if settings.mirror else ("namesrv", "topics")
    others = [name for name in names_of(ReadOptions) if name not in _OF_AUDIT]
    refused = dict.fromkeys(others, "has no effect: the job counts all messages")
    return refused | _set_by(namesrv, [NAME_SERVERS, ENDPOINTS]) | _set_by(topics, _TOPICS)


def _refused_of_target(settings: Mirror) -> Refused:
    refused = _set_by("to_namesrv", [NAME_SERVERS, ENDPOINTS]) | _of_settings(settings)
    refused |= dict.fromkeys(COPIES, "is set by the job: copies are unchanged")
    own = "has no effect: the job writes columns of its own"
    return refused | dict.fromkeys(("orderBy", "extraColumns", "delayLevels"), own)


def _set_by(setting: str, options: Iterable[str]) -> Refused:
    return dict.fromkeys(options, f"is set by setting {setting}")


def _of_settings(settings: Any) -> Refused:
    """Return the options that these settings set."""
    return {
        option: f"is set by setting {each.name}"
        for each in fields(settings)
        if (option := each.metadata.get("option")) is not None
    }


def _raw(done: str) -> str:
    return f"is set by the job: a body that cannot be decompressed is {done} as stored"


def _check_python(session: SessionSettings) -> None:
    """Raise `UsageError` if local tasks would run with a Python that does not exist."""
    python = pairs(session.conf).get("spark.pyspark.python")
    if python and session.master.startswith("local") and which(python) is None:
        raise UsageError(
            f"setting conf has spark.pyspark.python={python}, and there is no such program on this machine; correct the"
            " path"
        )


def _check_beginning(settings: StreamJob) -> None:
    """Raise `UsageError` if setting `start` and an option both say where a job without a checkpoint begins."""
    stream = settings.stream
    names = [name for name in pairs(stream.option) if name.lower() in BY_TIME]
    if names and stream.start != "earliest":
        raise UsageError(
            f"setting start is {stream.start!r}, and option {names[0]} says where to begin, too; leave out one of them"
        )


def _check_lag_files(settings: StreamJob) -> None:
    """Raise `UsageError` if option lagPrometheus names a file that the job writes, too."""
    files = [value for name, value in pairs(settings.stream.option).items() if name.lower() == "lagprometheus"]
    written = {"lag_json": settings.stream.lag_json, "lag_prometheus": settings.stream.lag_prometheus}
    if isinstance(settings, Metrics):
        written["to_prometheus"] = settings.to_prometheus
    for setting, own in written.items():
        if own and any(local_path(file) == local_path(own) for file in files):
            raise UsageError(
                f"setting {setting} and option lagPrometheus are the same file, {own}; leave out one of them"
            )


def _check_columns(columns: Iterable[str], needed: Iterable[str]) -> None:
    if missing := [name for name in needed if name not in columns]:
        raise UsageError(f"option columns leaves out column {missing[0]}, which the job needs; add the column")


def _check_archive(settings: Audit | Replay) -> None:
    """Raise `UsageError` if there is no archive of the right format in a local folder.

    A path without a scheme is not checked if Spark's default file system may be another one.
    """
    place, session = settings.archive, settings.session
    is_remote = not session.master.startswith("local") or any("defaultFS" in name for name in session.conf)
    folder = local_path(place)
    if folder is None or (is_remote and not place.startswith("file:")):
        return
    if not folder.is_dir():
        raise UsageError(f"there is no archive at {place}; correct setting archive")
    is_delta = (folder / "_delta_log").is_dir()
    if is_delta != (settings.format == "delta"):
        found = "a Delta table" if is_delta else "no Delta table"
        raise UsageError(
            f"setting format is {settings.format}, and the archive at {place} is {found}; correct setting format"
        )
