"""The options of source and sink that follow from a job's settings. No Spark here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyromq.names import dead_letter_topic
from pyromq.spark.given_options import read_options, sink_options
from pyromq.spark.jobs.setting_checks import pairs
from pyromq.spark.jobs.settings import GROUP_PREFIX, Archive, Audit, Metrics, Mirror, Redrive, Replay, options_of
from pyromq.spark.options import STREAM, split
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.write.sink_options import SinkOptions

StreamJob = Archive | Metrics | Mirror  # settings of the jobs that read topics as a stream

BY_TIME = {"startingtimestamp", "startingoffsetsbytimestamp"}  # source options that replace setting start
ABSENT_BROKERS = {"retiredbrokers", "deadlinems", "failondataloss"}  # source options about missing brokers
COPIES = {"verifyTags": "false", "nullBody": "tombstone"}  # sink options that write copies of messages unchanged


def source_options(job: str, settings: StreamJob) -> dict[str, str]:
    """Return the options of source `rocketmq` for a job that reads a stream."""
    stream = settings.stream
    options = options_of(settings.session) | options_of(stream)
    if not stream.group:
        topics = "-".join(topic.strip() for topic in stream.topics.split(",")).replace("%", "")
        options["group"] = GROUP_PREFIX + f"{job}-{topics}"[:200]
    # Bodies that cannot be decompressed are copied as stored, with property UNDECODABLE.
    options["onUndecodable"] = "raw"
    given = pairs(stream.option)
    if BY_TIME & {name.lower() for name in given}:
        del options["startingOffsets"]
    return options | given


def dead_letter_options(settings: Redrive) -> dict[str, str]:
    """Return the source options that read the dead letters of the job's group."""
    return {
        "namesrvAddr": settings.session.namesrv,
        "subscribe": dead_letter_topic(settings.group),
        "systemProperties": "true",
        "onUndecodable": "raw",  # bodies that cannot be decompressed are sent as stored, with property UNDECODABLE
    } | pairs(settings.option)


def audit_options(settings: Audit, namesrv: str, topics: Iterable[str]) -> dict[str, str]:
    """Return the source options that find the bounds of queues at brokers."""
    return {"namesrvAddr": namesrv, "subscribe": ",".join(topics)} | pairs(settings.option)


def copies_options(settings: Mirror | Audit, topics: Iterable[str]) -> dict[str, str]:
    """Return the source options that read mirrored topics.

    Only options about brokers that are not registered are used, and connection options of the mirror's target.
    """
    if isinstance(settings, Mirror):
        namesrv, option, to_option = settings.to_namesrv, settings.stream.option, settings.to_option
    else:
        namesrv, option, to_option = settings.session.namesrv, settings.option, ()
    away = {name: value for name, value in pairs(option).items() if name.lower() in ABSENT_BROKERS}
    return {"namesrvAddr": namesrv, "subscribe": ",".join(topics)} | away | connection_options(to_option)


def mirror_options(settings: Mirror) -> dict[str, str]:
    """Return the sink options of a mirror."""
    options = {"namesrvAddr": settings.to_namesrv, "delivery": settings.delivery} | COPIES | pairs(settings.to_option)
    if settings.to_topic:  # the topic is part of the write's name: a copied checkpoint may have another topic
        options["topic"] = settings.to_topic
    return options


def window_options(settings: Metrics) -> dict[str, str]:
    """Return the sink options of windows that job metrics writes to a topic."""
    options = {"namesrvAddr": settings.session.namesrv, "topic": settings.to_topic, "delivery": settings.delivery}
    return options | connection_options(settings.stream.option)


def write_options(settings: Redrive | Replay) -> dict[str, str]:
    """Return the sink options of a batch job."""
    options = {"namesrvAddr": settings.session.namesrv, "delivery": settings.delivery} | COPIES
    if isinstance(settings, Replay):
        options["topic"] = settings.to_topic or settings.topic
    else:
        options |= connection_options(settings.option)
    return options if settings.delivery == "atLeastOnce" else options | {"jobId": settings.job}


def connection_options(given: tuple[str, ...]) -> dict[str, str]:
    """Return the connection options among the options NAME=VALUE."""
    return dict(split(pairs(given))[0].given)


def reads_and_writes(job: str, settings: Any) -> Iterator[ReadOptions | SinkOptions]:
    """Yield the parsed options of the job's reads and writes. Raises as `read_options` and `sink_options` do."""
    if isinstance(settings, StreamJob):
        yield read_options(source_options(job, settings), STREAM)
    if isinstance(settings, Redrive):
        yield read_options(dead_letter_options(settings))
    if isinstance(settings, Audit):
        yield read_options(audit_options(settings, settings.session.namesrv, ["any"]))
    if isinstance(settings, Mirror):
        yield sink_options(mirror_options(settings), STREAM)
    if isinstance(settings, Metrics) and settings.to_topic:
        yield sink_options(window_options(settings))
    if isinstance(settings, Redrive | Replay) and not settings.dry_run:
        yield sink_options(write_options(settings))
