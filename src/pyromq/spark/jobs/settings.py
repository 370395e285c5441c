"""The settings of all jobs, for the command line, YAML files and programs. Imports no pyspark.

Each setting is declared once, with its help, default, check, and the option of source or sink that the setting sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from pyromq.errors import UsageError
from pyromq.names import check_group, check_topic
from pyromq.spark.option_values import check_value, did_you_mean, listed

GROUP_PREFIX = "pyromq-spark-"
# Equal to archive.tables.FORMATS, which is not imported: importing pyarrow is too slow for `--help`.
FORMATS = ("parquet", "delta")

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")
_UNITS = {
    name: unit
    for unit, names in {
        "milliseconds": "ms millisecond milliseconds",
        "seconds": "s sec second seconds",
        "minutes": "m min minute minutes",
        "hours": "h hour hours",
        "days": "d day days",
        "weeks": "w week weeks",
    }.items()
    for name in names.split()
}

Check = Callable[[str, Any], object]  # called with name and value of a setting; raises `UsageError` for a wrong value


def setting(doc: str, default: Any = MISSING, *, check: Check | None = None, option: str | None = None) -> Any:
    """Declare a job setting with its help text; a setting without a default is required.

    `option` is the option of source or sink that the setting sets.
    """
    return field(default=default, metadata={"doc": doc, "check": check, "option": option})


def pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse texts of the form NAME=VALUE to a dict.

    Raises `UsageError` for a text of another form, and for a name that is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise UsageError(f"{text!r:.150} is not of the form NAME=VALUE")
        if name.lower() in map(str.lower, found):
            raise UsageError(f"{name} is given twice; give one value")
        found[name] = value
    return found


def spark_interval(setting: str, text: str) -> str:
    """Return a duration in Spark's form: `10 seconds` for `10s`, `10 sec` and `10 seconds`. Raises `UsageError`."""
    parts = re.fullmatch(r"(?:\d+ ?[a-z]+ ?)+", text.strip())
    found = [(number, _UNITS.get(unit)) for number, unit in re.findall(r"(\d+) ?([a-z]+)", text)]
    if not parts or not all(unit for _, unit in found):
        raise UsageError(f"setting {setting} is {text!r}; write a length of time: 500ms, 10s, 5m, 1h, 2d or 10 seconds")
    return " ".join(f"{number} {unit}" for number, unit in found)


def _moment(name: str, text: str) -> None:
    """Raise `UsageError` unless the text of setting `name` is empty or a timestamp that Spark accepts."""
    try:
        if not text or (_MOMENT.fullmatch(text) and datetime.fromisoformat(text)):
            return
    except ValueError:  # a date that does not exist, for example the 31st of February
        pass
    raise UsageError(f"setting {name} is {text!r}; write a time: 2026-01-31, or '2026-01-31 12:00:00' (UTC)")


def _check_order(since: str, until: str) -> None:
    """Raise `UsageError` if no message can be stored between these times."""
    if since and until and _in_utc(since) >= _in_utc(until):
        raise UsageError(
            f"setting since is {since!r}, which is not before setting until, {until!r}; correct one of them"
        )


def _in_utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _span(name: str, text: str) -> None:
    """Raise `UsageError` unless the text is a length of time above 0."""
    if not re.search("[1-9]", spark_interval(name, text)):
        raise UsageError(f"setting {name} is {text!r}; write a length above 0: 500ms, 10s, 5m, 1h or 2d")


def _file(name: str, file: str) -> None:
    """Raise `UsageError` if the folder of a file does not exist.

    The job writes the file only after a batch, which may take hours.
    """
    if file and not (folder := Path(file).parent).is_dir():
        raise UsageError(f"setting {name} is {file}, and there is no folder {folder}; make it first")
    if file and Path(file).is_dir():
        raise UsageError(f"setting {name} is {file}, which is a folder; name a file")


def _folder(name: str, place: str) -> None:
    """Raise `UsageError` if a folder to write is a file. Spark would replace the file, or fail in its tasks."""
    if Path(place.removeprefix("file://")).is_file():
        raise UsageError(f"setting {name} is {place}, which is a file; name a folder")


def _check_different(kind: str, **places: str) -> None:
    """Raise `UsageError` if two settings name the same file or folder."""
    names: dict[str, str] = {}
    for name, place in places.items():
        if place and (other := names.setdefault(place.rstrip("/"), name)) != name:
            raise UsageError(f"setting {other} and setting {name} are the same {kind}, {place}; give two {kind}s")


def _least(least: int) -> Check:
    def check(name: str, value: int) -> None:
        if value < least:
            raise UsageError(f"setting {name} is {value}; write a whole number from {least} on")

    return check


def _one_of(*words: str) -> Check:
    def check(name: str, value: str) -> None:
        if value not in words:
            raise UsageError(f"setting {name} is {value!r}; write {' or '.join(words)}")

    return check


def _named(check: Callable[[str], object]) -> Check:
    """Return a check of names, separated by commas; an empty text has none."""

    def check_names(name: str, text: str) -> None:
        for each in listed(text):
            check_value(f"setting {name}", text, check, each)

    return check_names


def _name_servers(name: str, text: str) -> None:
    from pyromq.client.cluster.name_servers import addresses_of  # imported late: it doubles the time of `--help`

    if text:
        check_value(f"setting {name}", text, addresses_of, text)


_topics, _groups = _named(check_topic), _named(check_group)
_delivery = _one_of("atLeastOnce", "idempotent", "exactlyOnce")


def _pairs(name: str, texts: tuple[str, ...]) -> None:
    pairs(texts)


def _spark_settings(name: str, texts: tuple[str, ...]) -> None:
    """Raise `UsageError` for names that no setting of Spark or Hadoop has. Spark would ignore them."""
    for each in pairs(texts):
        first, dot, rest = each.partition(".")
        if not dot:
            raise UsageError(f"setting {name} has {each!r}, and settings of Spark have dots in their names")
        if first != "spark" and get_close_matches(first.lower(), ["spark"], cutoff=0.75):
            raise UsageError(f"setting {name} has {each!r}, which Spark does not know; did you mean spark.{rest}?")


def _run_checks(settings: Any) -> None:
    for each in fields(settings):
        if (check := each.metadata.get("check")) is not None:
            check(each.name, getattr(settings, each.name))


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a job: the Spark session and the name servers."""

    namesrv: str = setting(
        "Name servers, `host:port;host:port`.", "127.0.0.1:9876", check=_name_servers, option="namesrvAddr"
    )
    master: str = setting("Spark's master; a session that exists already is used as it is.", "local[*]")
    conf: tuple[str, ...] = setting("Settings of Spark, NAME=VALUE.", (), check=_spark_settings)

    def __post_init__(self) -> None:
        _run_checks(self)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a streaming job: which topics to read, from where, and how often."""

    topics: str = setting("Topics, separated by commas.", check=_topics, option="subscribe")
    checkpoint: str = setting("Folder or URI where Spark keeps the job's offsets.", check=_folder)
    once: bool = setting("End after the messages that exist now.", False)
    every: str = setting("Time between two batches, `10s`; `0s`: no pause.", "10s", check=spark_interval)
    start: str = setting(
        "Where a job without a checkpoint begins: earliest, latest, group, or JSON.",
        "earliest",
        option="startingOffsets",
    )
    batch_rows: int = setting("Limit of messages per batch.", 1_000_000, check=_least(1), option="maxOffsetsPerTrigger")
    group: str = setting(
        "Group that shows the job's progress; default: named after the job and its topics.",
        "",
        check=_groups,
        option="group",
    )
    option: tuple[str, ...] = setting("Further options of the source, NAME=VALUE.", (), check=_pairs)
    lag_json: str = setting("File with the present lag of the job, as JSON.", "", check=_file)
    lag_prometheus: str = setting("File with the present lag of the job, as Prometheus text.", "", check=_file)

    def __post_init__(self) -> None:
        _run_checks(self)
        _check_different("file", lag_json=self.lag_json, lag_prometheus=self.lag_prometheus)


@dataclass(frozen=True, slots=True)
class Archive:
    """Copy topics into Parquet or Delta, each message once."""

    to: str = setting("The archive: a folder or URI.", check=_folder)
    format: str = setting("parquet, or delta (needs pyromq[lake]).", "parquet", check=_one_of(*FORMATS))
    stream: StreamSettings = field(default_factory=StreamSettings)
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        _check_different("folder", to=self.to, checkpoint=self.stream.checkpoint)


@dataclass(frozen=True, slots=True)
class Audit:
    """Compare each queue of an archive with the broker, or a mirrored topic with its source, by counting messages."""

    archive: str = setting("The archive to count: a folder or URI.", "")
    format: str = setting("parquet or delta.", "parquet", check=_one_of(*FORMATS))
    topics: str = setting("Only these topics, separated by commas; default: all in the archive.", "", check=_topics)
    mirror: str = setting("Count this mirrored topic, which is at --namesrv, instead of an archive.", "", check=_topics)
    source_namesrv: str = setting("Name servers of the mirror's source.", "", check=_name_servers)
    late_start: bool = setting("The archive began late: earlier messages of the queues do not count as lost.", False)
    complete: bool = setting("Messages that are not archived yet count as lost.", False)
    sequence: str = setting("Property with a number that must rise from message to message of a key.", "")
    report: str = setting("Write the table also to this folder, as Parquet.", "", check=_folder)
    option: tuple[str, ...] = setting("Further options of the source at the brokers, NAME=VALUE.", (), check=_pairs)
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        if bool(self.archive) == bool(self.mirror):
            raise UsageError("give exactly one of the settings archive and mirror")
        if self.mirror and not self.source_namesrv:
            raise UsageError("setting mirror needs setting source_namesrv: the name servers of the mirrored cluster")
        if self.source_namesrv and not self.mirror:
            raise UsageError("setting source_namesrv is for a mirrored topic: give setting mirror, or leave it out")
        if self.mirror and (unused := "topics" if self.topics else "sequence" if self.sequence else ""):
            raise UsageError(f"setting {unused} is for an archive, and a mirrored topic is counted; leave it out")


@dataclass(frozen=True, slots=True)
class Metrics:
    """Count messages, bytes and delays in windows of time, by topic and tag."""

    window: str = setting("Length of a window.", "1 minute", check=_span)
    late: str = setting("How long a window waits for late messages.", "1 minute", check=spark_interval)
    mode: str = setting("append: each window once, when it is complete; update: whenever it changes.", "append")
    to_topic: str = setting("Write windows to this topic, exactly once, as JSON.", "", check=_topics, option="topic")
    to: str = setting("Write windows to this folder, as Parquet.", "", check=_folder)
    to_prometheus: str = setting(
        "Write the latest window of each topic and tag to this file, as Prometheus text.", "", check=_file
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
        _check_different("folder", to=self.to, checkpoint=self.stream.checkpoint)
        _check_different(
            "file",
            to_prometheus=self.to_prometheus,
            lag_json=self.stream.lag_json,
            lag_prometheus=self.stream.lag_prometheus,
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """Send archived messages again, chosen by time, tag or key."""

    archive: str = setting("The archive: a folder or URI.")
    topic: str = setting("Topic whose messages are sent again.", check=_topics)
    job: str = setting(
        "Name of this replay: a replay of equal name sends no message twice. Not needed with dry_run.",
        "",
        option="jobId",
    )
    to_topic: str = setting(
        "Send to this topic; default: the topic of the messages.", "", check=_topics, option="topic"
    )
    format: str = setting("parquet or delta.", "parquet", check=_one_of(*FORMATS))
    since: str = setting("Stored at this time or later, `2026-01-31 12:00:00` UTC.", "", check=_moment)
    until: str = setting("Stored before this time.", "", check=_moment)
    tag: str = setting("Only with this tag.", "")
    key: str = setting("Only with this key.", "")
    same_queues: bool = setting("Send to queues of the same number, in order.", False)
    rate: int = setting("Limit of messages per second, all tasks together; 0: no limit.", 0, check=_least(0))
    dry_run: bool = setting("Only count.", False)
    delivery: str = setting("atLeastOnce, idempotent or exactlyOnce.", "idempotent", check=_delivery, option="delivery")
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        _check_named(self.job, self.dry_run)
        _check_order(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Redrive:
    """Send a group's dead letters again, each once in a run."""

    group: str = setting("The group whose dead letters are sent again.", check=_groups)
    job: str = setting(
        "Name of this run: a run of equal name sends no message twice. Not needed with dry_run.", "", option="jobId"
    )
    to_topic: str = setting(
        "Send to this topic; default: the original topic of each.", "", check=_topics, option="topic"
    )
    reason: str = setting("Only dead letters whose reason contains this text.", "")
    since: str = setting("Dead-lettered at this time or later, `2026-01-31 12:00:00` UTC.", "", check=_moment)
    until: str = setting("Dead-lettered before this time.", "", check=_moment)
    attempts: int = setting(
        "Redrives of a message before it goes to the parking topic; 0: no limit.", 0, check=_least(0)
    )
    parking_topic: str = setting("Topic for messages that reach this number of redrives.", "", check=_topics)
    option: tuple[str, ...] = setting("Further options of the source, NAME=VALUE.", (), check=_pairs)
    dry_run: bool = setting("Only count.", False)
    delivery: str = setting(
        "atLeastOnce, idempotent or exactlyOnce.", "exactlyOnce", check=_delivery, option="delivery"
    )
    session: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        _run_checks(self)
        if bool(self.attempts) != bool(self.parking_topic):
            raise UsageError("settings attempts and parking_topic belong together; give both or none")
        _check_named(self.job, self.dry_run)
        _check_order(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Mirror:
    """Copy topics into another cluster, queue by queue, exactly once."""

    to_namesrv: str = setting("Name servers of the other cluster.", check=_name_servers)
    cluster: str = setting("Name of the source cluster: mirrored messages carry it and are not mirrored back.", "a")
    to_cluster: str = setting("Name of the other cluster.", "b")
    to_topic: str = setting("Topic in the other cluster; default: the same name.", "", check=_topics, option="topic")
    to_option: tuple[str, ...] = setting(
        "Further options of the sink, NAME=VALUE, for example tlsCa=FILE.", (), check=_pairs
    )
    delivery: str = setting(
        "exactlyOnce, idempotent or atLeastOnce.", "exactlyOnce", check=_delivery, option="delivery"
    )
    groups: str = setting(
        "Groups whose offsets are carried over at the end of the job, separated by commas.", "", check=_groups
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


def _check_named(job: str, dry_run: bool) -> None:
    if not job and not dry_run:
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
            hint = did_you_mean(str(name), known)  # YAML allows keys that are no texts
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
            raise UsageError(f"setting {name} is {value}; it must be a text or a list of texts")
        return tuple(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"setting {name} is {_shown(value)}; it must be {_KINDS[kind]}{_remedy(value, kind)}")
    return value


_KINDS: dict[type, str] = {str: "a text", int: "a whole number", bool: "true or false"}


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
    from pyromq.spark.jobs.job_options import check_options  # imported late: it imports this module

    check_options(name, settings)
    summary = import_module(f"pyromq.spark.jobs.{name}_job").run(settings, tell)
    assert isinstance(summary, Summary)
    return summary
