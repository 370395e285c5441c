"""The settings of all jobs, for the command line, YAML files and programs. Imports no pyspark.

Each setting is declared once, with its help, default, check, and the option of source or sink that the setting sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Any, get_type_hints

from pyromq.errors import UsageError
from pyromq.spark.jobs.setting_checks import (
    Check,
    at_least,
    check_conf,
    check_different,
    check_file,
    check_folder,
    check_groups,
    check_master,
    check_moment,
    check_name_servers,
    check_one_group,
    check_one_topic,
    check_order,
    check_outside,
    check_pairs,
    check_span,
    check_target,
    check_topics,
    one_of,
    spark_interval,
)
from pyromq.spark.option_values import did_you_mean, listed

GROUP_PREFIX = "pyromq-spark-"
# Equal to archive.tables.FORMATS, which is not imported: importing pyarrow is too slow for `--help`.
FORMATS = ("parquet", "delta")


def setting(doc: str, default: Any = MISSING, *, check: Check | None = None, option: str | None = None) -> Any:
    """Declare a job setting with its help text; a setting without a default is required.

    `option` is the option of source or sink that the setting sets.
    """
    return field(default=default, metadata={"doc": doc, "check": check, "option": option})


_delivery = one_of("atLeastOnce", "idempotent", "exactlyOnce")


def _run_checks(settings: Any) -> None:
    for each in fields(settings):
        if (check := each.metadata.get("check")) is not None:
            check(each.name, getattr(settings, each.name))


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a job: the Spark session and the name servers."""

    namesrv: str = setting(
        "Name servers, `host:port;host:port`.", "127.0.0.1:9876", check=check_name_servers, option="namesrvAddr"
    )
    master: str = setting(
        "Spark's master; a session that exists already is used as it is.", "local[*]", check=check_master
    )
    conf: tuple[str, ...] = setting("Settings of Spark, NAME=VALUE.", (), check=check_conf)

    def __post_init__(self) -> None:
        _run_checks(self)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a streaming job: which topics to read, from where, and how often."""

    topics: str = setting("Topics, separated by commas.", check=check_topics, option="subscribe")
    checkpoint: str = setting("Folder or URI where Spark keeps the job's offsets.", check=check_folder)
    once: bool = setting("End after the messages that exist now.", False)
    every: str = setting(
        "Time between two batches, `10s`; `0s`: no pause. Not used with once.", "10s", check=spark_interval
    )
    start: str = setting(
        "Where a job without a checkpoint begins: earliest, latest, group, or JSON.",
        "earliest",
        option="startingOffsets",
    )
    batch_rows: int = setting(
        "Limit of messages per batch.", 1_000_000, check=at_least(1), option="maxOffsetsPerTrigger"
    )
    group: str = setting(
        "Group that shows the job's progress; default: named after the job and its topics.",
        "",
        check=check_one_group,
        option="group",
    )
    option: tuple[str, ...] = setting("Further options of the source, NAME=VALUE.", (), check=check_pairs)
    lag_json: str = setting("File with the present lag of the job, as JSON.", "", check=check_file)
    lag_prometheus: str = setting("File with the present lag of the job, as Prometheus text.", "", check=check_file)

    def __post_init__(self) -> None:
        _run_checks(self)
        check_different("file", lag_json=self.lag_json, lag_prometheus=self.lag_prometheus)


@dataclass(frozen=True, slots=True)
class Archive:
    """Copy topics into Parquet or Delta, each message once."""

    to: str = setting("The archive: a folder or URI.", check=check_folder)
    format: str = setting("parquet, or delta (needs pyromq[lake]).", "parquet", check=one_of(*FORMATS))
    stream: StreamSettings = field(default_factory=StreamSettings)
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        check_outside(("to", self.to), ("checkpoint", self.stream.checkpoint))


@dataclass(frozen=True, slots=True)
class Audit:
    """Compare each queue of an archive with the broker, or a mirrored topic with its source, by counting messages."""

    archive: str = setting("The archive to count: a folder or URI.", "")
    format: str = setting("parquet or delta.", "parquet", check=one_of(*FORMATS))
    topics: str = setting(
        "Only these topics, separated by commas; default: all in the archive.", "", check=check_topics
    )
    mirror: str = setting(
        "Count this mirrored topic, which is at --namesrv, instead of an archive.", "", check=check_one_topic
    )
    source_namesrv: str = setting("Name servers of the mirror's source.", "", check=check_name_servers)
    late_start: bool = setting("The archive began late: earlier messages of the queues do not count as lost.", False)
    complete: bool = setting("Messages that are not archived yet count as lost.", False)
    sequence: str = setting("Property with a number that must rise from message to message of a key.", "")
    report: str = setting("Write the table also to this folder, as Parquet.", "", check=check_folder)
    option: tuple[str, ...] = setting(
        "Further options of the source at the brokers, NAME=VALUE.", (), check=check_pairs
    )
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        if bool(self.archive) == bool(self.mirror):
            raise UsageError("give exactly one of the settings archive and mirror")
        if self.mirror and not self.source_namesrv:
            raise UsageError("setting mirror needs setting source_namesrv: the name servers of the mirrored cluster")
        if self.source_namesrv and not self.mirror:
            raise UsageError("setting source_namesrv is for a mirrored topic: give setting mirror, or leave it out")
        of_archive = {"topics": self.topics, "sequence": self.sequence, "format": self.format.replace(FORMATS[0], "")}
        if self.mirror and (unused := next((name for name, value in of_archive.items() if value), None)):
            raise UsageError(f"setting {unused} is for an archive, and a mirrored topic is counted; leave it out")
        check_outside(("archive", self.archive), ("report", self.report))
        check_outside(("report", self.report), ("archive", self.archive), is_replaced=True)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Count messages, bytes and delays in windows of time, by topic and tag."""

    window: str = setting("Length of a window.", "1 minute", check=check_span)
    late: str = setting("How long a window waits for late messages.", "1 minute", check=spark_interval)
    mode: str = setting("append: each window once, when it is complete; update: whenever it changes.", "append")
    to_topic: str = setting(
        "Write windows to this topic, exactly once, as JSON.", "", check=check_target, option="topic"
    )
    to: str = setting("Write windows to this folder, as Parquet.", "", check=check_folder)
    to_prometheus: str = setting(
        "Write the latest window of each topic and tag to this file, as Prometheus text.", "", check=check_file
    )
    delivery: str = setting(
        "Delivery to the topic: `atLeastOnce`, `idempotent` or `exactlyOnce`.",
        "exactlyOnce",
        check=_delivery,
        option="delivery",
    )
    stream: StreamSettings = field(default_factory=StreamSettings)
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        if len([place for place in (self.to_topic, self.to, self.to_prometheus) if place]) != 1:
            raise UsageError("give exactly one of the settings to_topic, to and to_prometheus")
        if self.mode not in ("append", "update") or (self.to and self.mode == "update"):
            raise UsageError(f"setting mode is {self.mode!r}; write append, or update unless the windows go to Parquet")
        if not self.to_topic and self.delivery != "exactlyOnce":
            raise UsageError("setting delivery is for setting to_topic, and the windows go to files; leave it out")
        check_different("folder", to=self.to, checkpoint=self.stream.checkpoint)
        check_different(
            "file",
            to_prometheus=self.to_prometheus,
            lag_json=self.stream.lag_json,
            lag_prometheus=self.stream.lag_prometheus,
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """Send archived messages again, chosen by time, tag or key."""

    archive: str = setting("The archive: a folder or URI.")
    topic: str = setting("Topic whose messages are sent again.", check=check_one_topic)
    job: str = setting(
        "Name of this replay: a replay of equal name sends no message twice. Not with atLeastOnce.",
        "",
        option="jobId",
    )
    to_topic: str = setting(
        "Send to this topic; default: the topic of the messages.", "", check=check_target, option="topic"
    )
    format: str = setting("parquet or delta.", "parquet", check=one_of(*FORMATS))
    since: str = setting("Stored at this time or later, `2026-01-31 12:00:00` UTC.", "", check=check_moment)
    until: str = setting("Stored before this time.", "", check=check_moment)
    tag: str = setting("Only with this tag.", "")
    key: str = setting("Only with this key.", "")
    same_queues: bool = setting("Send to queues of the same number, in order.", False)
    rate: int = setting("Limit of messages per second, all tasks together; 0: no limit.", 0, check=at_least(0))
    dry_run: bool = setting("Only count.", False)
    delivery: str = setting("atLeastOnce, idempotent or exactlyOnce.", "idempotent", check=_delivery, option="delivery")
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        _check_named(self.job, self.delivery, self.dry_run)
        check_order(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Redrive:
    """Send a group's dead letters again, each once in a run."""

    group: str = setting("The group whose dead letters are sent again.", check=check_one_group)
    job: str = setting(
        "Name of this run: a run of equal name sends no message twice. Not with atLeastOnce.",
        "",
        option="jobId",
    )
    to_topic: str = setting(
        "Send to this topic; default: the original topic of each.", "", check=check_target, option="topic"
    )
    reason: str = setting("Only dead letters whose reason contains this text.", "")
    since: str = setting("Dead-lettered at this time or later, `2026-01-31 12:00:00` UTC.", "", check=check_moment)
    until: str = setting("Dead-lettered before this time.", "", check=check_moment)
    attempts: int = setting(
        "Redrives of a message before it goes to the parking topic; 0: no limit.", 0, check=at_least(0)
    )
    parking_topic: str = setting("Topic for messages that reach this number of redrives.", "", check=check_target)
    option: tuple[str, ...] = setting("Further options of the source, NAME=VALUE.", (), check=check_pairs)
    dry_run: bool = setting("Only count.", False)
    delivery: str = setting(
        "atLeastOnce, idempotent or exactlyOnce.", "exactlyOnce", check=_delivery, option="delivery"
    )
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        if bool(self.attempts) != bool(self.parking_topic):
            raise UsageError("settings attempts and parking_topic belong together; give both or none")
        _check_named(self.job, self.delivery, self.dry_run)
        check_order(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Mirror:
    """Copy topics into another cluster, queue by queue, exactly once."""

    to_namesrv: str = setting("Name servers of the other cluster.", check=check_name_servers)
    cluster: str = setting("Name of the source cluster: mirrored messages carry it and are not mirrored back.", "a")
    to_cluster: str = setting("Name of the other cluster.", "b")
    to_topic: str = setting(
        "Topic in the other cluster; default: the same name.", "", check=check_target, option="topic"
    )
    to_option: tuple[str, ...] = setting(
        "Further options of the sink, NAME=VALUE, for example tlsCa=FILE.", (), check=check_pairs
    )
    delivery: str = setting(
        "exactlyOnce, idempotent or atLeastOnce.", "exactlyOnce", check=_delivery, option="delivery"
    )
    groups: str = setting(
        "Groups whose offsets are carried over at the end of the job, separated by commas.", "", check=check_groups
    )
    stream: StreamSettings = field(default_factory=StreamSettings)
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        if self.to_topic and len(self.topics) > 1:
            raise UsageError(
                f"setting to_topic names one topic, and {len(self.topics)} topics are mirrored; leave to_topic out"
            )
        if self.cluster == self.to_cluster:
            raise UsageError(f"setting cluster and setting to_cluster are both {self.cluster!r}; give two names")
        same = set(listed(self.to_namesrv, ";")) & set(listed(self.session.namesrv, ";"))
        if same and self.to_topic in ("", *self.topics):
            raise UsageError(
                f"setting namesrv and setting to_namesrv both name {min(same)}: topics would be copied onto themselves;"
                " give the name servers of the other cluster, or another topic as setting to_topic"
            )

    @property
    def topics(self) -> list[str]:
        return listed(self.stream.topics)


def _check_named(job: str, delivery: str, dry_run: bool) -> None:
    if job and delivery == "atLeastOnce":
        raise UsageError(
            "setting job is for delivery idempotent and exactlyOnce, and setting delivery is atLeastOnce: a repetition"
            " sends all messages again; leave one of the two out"
        )
    if not job and not dry_run and delivery != "atLeastOnce":
        raise UsageError(
            "setting job is missing: name the run, so that a repetition sends nothing twice, or set dry_run"
        )


JOBS: dict[str, type] = {
    "archive": Archive,
    "replay": Replay,
    "redrive": Redrive,
    "audit": Audit,
    "metrics": Metrics,
    "mirror": Mirror,
}


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a job: rows of a table, notes for the user, and `failed`, true if the job found faults."""

    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    failed: bool = False


def flags(job: type) -> Iterator[tuple[Field[Any], type]]:
    """Yield the field and the type of each setting of a job, including those of `session` and `stream`."""
    hints = get_type_hints(job)
    for each in fields(job):
        kind = hints[each.name]
        if is_dataclass(kind):
            assert isinstance(kind, type)
            yield from flags(kind)
        else:
            yield each, kind


def options_of(settings: Any) -> dict[str, str]:
    """Return the options of source or sink that these settings set, by option name.

    Settings of `session` and `stream` are left out.
    """
    declared = {each.name: each.metadata["option"] for each in fields(settings) if each.metadata.get("option")}
    return {option: str(getattr(settings, name)) for name, option in declared.items()}


def is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def build(job: type, values: Mapping[str, Any]) -> Any:
    """Return the settings of a job from values by name.

    Raises `UsageError` naming a setting that is unknown, missing, or of the wrong type.
    """
    known = {each.name: (each, kind) for each, kind in flags(job)}
    for name in values:
        if name not in known:
            hint = did_you_mean(str(name), known)  # YAML allows keys that are no strings
            raise UsageError(f"setting {name!r} is unknown; {hint}")
    for name, (each, _) in known.items():
        if is_required(each) and values.get(name) in (None, ""):
            raise UsageError(f"setting {name} is missing: {each.metadata['doc']}")
    checked = {name: _checked(name, value, known[name][1]) for name, value in values.items()}
    return _assemble(job, checked)


def _checked(name: str, value: Any, kind: type) -> Any:
    if kind not in (str, int, bool):
        value = (value,) if isinstance(value, str) else value
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise UsageError(f"setting {name} is {value}; it must be a string or a list of strings")
        return tuple(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"setting {name} is {_shown(value)}; it must be {_KINDS[kind]}{_remedy(value, kind)}")
    return value


_KINDS: dict[type, str] = {str: "a string", int: "a whole number", bool: "true or false"}


def _shown(value: Any) -> str:
    """Return a value as YAML spells it, for an error text. Unquoted values in YAML may be numbers, dates or lists."""
    return repr(value) if isinstance(value, str) else "empty" if value is None else str(value)


def _remedy(value: Any, kind: type) -> str:
    if kind is not str or value is None:
        return ""
    if isinstance(value, list):
        return f": write {','.join(map(str, value))}"
    return "" if isinstance(value, dict) else ": put it in quotes"


def _assemble(job: type, values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(job)
    parts = {}
    for each in fields(job):
        if is_dataclass(hints[each.name]):
            parts[each.name] = _assemble(hints[each.name], values)
        elif each.name in values:
            parts[each.name] = values[each.name]
    return job(**parts)


def run(name: str, settings: Any, tell: Any) -> Summary:
    """Run the job with this name and return its summary; imports pyspark.

    The job calls `tell(rows)` repeatedly with the number of messages done.
    """
    from pyromq.spark.jobs.job_checks import check_job  # imported late: it imports this module

    check_job(name, settings)
    summary = import_module(f"pyromq.spark.jobs.{name}_job").run(settings, tell)
    assert isinstance(summary, Summary)
    return summary
