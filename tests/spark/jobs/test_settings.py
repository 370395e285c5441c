"""Settings of jobs: what is understood, and what is said about mistakes. Without Spark."""

from datetime import datetime

import pytest

from pyromq.errors import UsageError
from pyromq.spark.jobs import settings
from pyromq.spark.jobs.setting_checks import pairs
from pyromq.spark.jobs.settings import JOBS, Archive, build

ARCHIVE = {"to": "/lake", "topics": "orders", "checkpoint": "/checkpoint"}


def test_settings_of_all_parts_are_given_side_by_side():
    settings = build(Archive, ARCHIVE | {"once": True, "namesrv": "a:1", "conf": ["spark.x=1"]})
    assert (settings.to, settings.stream.topics, settings.stream.once) == ("/lake", "orders", True)
    assert (settings.session.namesrv, settings.session.conf) == ("a:1", ("spark.x=1",))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"to": "/lake", "topics": "orders"}, "setting checkpoint is missing"),
        (ARCHIVE | {"topic": "x"}, "setting 'topic' is unknown; did you mean topics"),
        (ARCHIVE | {"batch_rows": "many"}, "batch_rows is 'many'; it must be a whole number"),
        (ARCHIVE | {"once": "yes"}, "once is 'yes'; it must be true or false"),
        (ARCHIVE | {"to": 7}, "to is 7; it must be a string: put it in quotes"),
        (ARCHIVE | {"every": datetime(2026, 1, 31, 12)}, "every is 2026-01-31 12:00:00; .* a string: put it in quotes"),
        (ARCHIVE | {"topics": ["a", "b"]}, "topics is .*; it must be a string: write a,b"),
        (ARCHIVE | {"start": None}, "start is empty; it must be a string$"),
        (ARCHIVE | {"option": 5}, "option is 5; it must be a string or a list of strings"),
        (ARCHIVE | {"option": [5]}, r"option is \[5\]; it must be a string or a list of strings"),
        (ARCHIVE | {1: "x"}, "setting 1 is unknown; known are "),
    ],
)
def test_a_mistake_is_named(values, text):
    with pytest.raises(UsageError, match=text):
        build(Archive, values)


REPLAY = {"archive": "/lake", "topic": "orders", "job": "1"}
STREAM = {"topics": "orders", "checkpoint": "/checkpoint"}
MIRROR = STREAM | {"to_namesrv": "b:1"}


@pytest.mark.parametrize(
    ("job", "values", "text"),
    [
        ("archive", ARCHIVE | {"format": "pq"}, "setting format is 'pq'; write parquet or delta"),
        ("archive", ARCHIVE | {"conf": "foo"}, "'foo' is not of the form NAME=VALUE"),
        ("archive", ARCHIVE | {"option": "foo"}, "'foo' is not of the form NAME=VALUE"),
        ("audit", {}, "give exactly one of the settings archive and mirror"),
        ("audit", {"mirror": "orders"}, "setting mirror needs setting source_namesrv"),
        ("audit", {"archive": "/lake", "format": "pqrquet"}, "setting format is 'pqrquet'"),
        ("metrics", STREAM, "give exactly one of the settings to_topic, to and to_prometheus"),
        ("metrics", STREAM | {"to": "/windows", "mode": "update"}, "setting mode is 'update'"),
        ("metrics", STREAM | {"to_topic": "windows", "mode": "all"}, "setting mode is 'all'"),
        ("replay", {"archive": "/lake", "topic": "orders"}, "setting job is missing"),
        ("redrive", {"group": "billing"}, "or set dry_run"),
        ("redrive", {"group": "billing", "job": "1", "attempts": 3}, "attempts and parking_topic belong together"),
        ("replay", REPLAY | {"format": "orc"}, "setting format is 'orc'"),
        ("replay", REPLAY | {"rate": -5, "dry_run": True}, "setting rate is -5; write a whole number from 0 on"),
        ("replay", REPLAY | {"since": "rubbish"}, "setting since is 'rubbish'; write a time: 2026-01-31"),
        ("replay", REPLAY | {"until": "2026-02-31"}, "setting until is '2026-02-31'"),
        ("redrive", {"group": "billing", "job": "1", "since": "yesterday"}, "setting since is 'yesterday'"),
        ("archive", ARCHIVE | {"every": "banana"}, "setting every is 'banana'; write a duration"),
        ("archive", ARCHIVE | {"batch_rows": 0}, "setting batch_rows is 0; write a whole number from 1 on"),
        ("metrics", STREAM | {"to": "/windows", "window": "long"}, "setting window is 'long'"),
        ("metrics", STREAM | {"to": "/windows", "window": "0 s"}, "setting window is '0 s'; write a duration above 0"),
        ("metrics", STREAM | {"to": "/checkpoint/"}, "setting to and setting checkpoint are the same folder"),
        ("archive", ARCHIVE | {"to": "/checkpoint"}, "setting to and setting checkpoint are the same folder"),
        ("archive", ARCHIVE | {"lag_json": "/tmp/lag", "lag_prometheus": "/tmp/lag"}, "are the same file, /tmp/lag"),
        ("archive", ARCHIVE | {"lag_json": "/tmp"}, "setting lag_json is /tmp, which is a folder"),
        ("metrics", STREAM | {"to_prometheus": "/tmp/m", "lag_prometheus": "/tmp/m"}, "are the same file, /tmp/m"),
        (
            "metrics",
            STREAM | {"to_topic": "w", "delivery": "twice"},
            "setting delivery is 'twice'; write atLeastOnce or",
        ),
        ("replay", REPLAY | {"delivery": "twice"}, "setting delivery is 'twice'"),
        (
            "replay",
            REPLAY | {"since": "2026-02-01", "until": "2026-01-01"},
            "since is '2026-02-01', which is not before",
        ),
        (
            "redrive",
            {"group": "billing", "job": "1", "since": "2026-01-01 01:00:00+01:00", "until": "2026-01-01"},
            "which is not before",
        ),
        ("audit", {"archive": "/lake", "source_namesrv": "a:1"}, "setting source_namesrv is for a mirrored topic"),
        ("audit", {"mirror": "orders", "source_namesrv": "a:1", "sequence": "n"}, "setting sequence is for an archive"),
        ("audit", {"archive": "/lake", "report": __file__}, "is a file; name a folder"),
        ("archive", ARCHIVE | {"checkpoint": f"file://{__file__}"}, "is a file; name a folder"),
        ("mirror", MIRROR | {"to_namesrv": "b"}, "setting to_namesrv is 'b': name server address 'b' is not host:port"),
        (
            "mirror",
            MIRROR | {"groups": "billing, a b"},
            r"setting groups is 'billing, a b': the specified group\[a b\]",
        ),
        ("archive", ARCHIVE | {"topics": "a,b c"}, r"setting topics is 'a,b c': The specified topic\[b c\] contains"),
        ("archive", ARCHIVE | {"namesrv": "a:b"}, "setting namesrv is 'a:b'"),
        ("redrive", {"group": "a b", "job": "1"}, "setting group is 'a b'"),
        ("mirror", MIRROR | {"to_cluster": "a"}, "setting cluster and setting to_cluster are both 'a'"),
        ("mirror", MIRROR | {"topics": "a, b", "to_topic": "c"}, "to_topic names one topic, and 2 topics are mirrored"),
        ("mirror", MIRROR | {"to_namesrv": "a:1; b:1", "namesrv": "b:1"}, "would be copied onto themselves"),
        ("mirror", MIRROR | {"namesrv": "b:1", "to_topic": "orders"}, "would be copied onto themselves"),
        ("archive", ARCHIVE | {"master": "lcal[2]"}, r"setting master is 'lcal\[2\]'; .* did you mean local"),
        ("archive", ARCHIVE | {"master": "local[two]"}, r"setting master is 'local\[two\]'"),
        ("archive", ARCHIVE | {"master": "local[0]"}, r"setting master is 'local\[0\]'"),
        ("archive", ARCHIVE | {"master": "yarn-client"}, "setting master is 'yarn-client'; .* did you mean yarn"),
        ("archive", ARCHIVE | {"master": "sparc://h:7077"}, "setting master is 'sparc://h:7077'; .* mean spark"),
        ("archive", ARCHIVE | {"master": "spark://h"}, "setting master is 'spark://h'; write .*spark://HOST:PORT"),
        ("archive", ARCHIVE | {"master": "spark:/h:7077"}, "setting master is 'spark:/h:7077'"),
        ("archive", ARCHIVE | {"master": ""}, "setting master is ''"),
        ("replay", REPLAY | {"topic": "a,b"}, "setting topic is 'a,b': .* illegal characters"),
        ("replay", REPLAY | {"to_topic": "a,b", "dry_run": True}, "setting to_topic is 'a,b'"),
        ("replay", REPLAY | {"to_topic": "SCHEDULE_TOPIC_XXXX"}, "setting to_topic is .*only brokers write"),
        ("redrive", {"group": "a,b", "job": "1"}, "setting group is 'a,b'"),
        ("redrive", {"group": "a", "job": "1", "to_topic": "a,b"}, "setting to_topic is 'a,b'"),
        ("redrive", {"group": "a", "job": "1", "to_topic": "TIMER,"}, "setting to_topic is 'TIMER,'"),
        ("redrive", {"group": "a", "job": "1", "to_topic": "SELF_TEST_TOPIC"}, "setting to_topic is .*only brokers"),
        ("redrive", {"group": "a", "job": "1", "attempts": 1, "parking_topic": "a,b"}, "parking_topic is 'a,b'"),
        (
            "redrive",
            {"group": "a", "job": "1", "attempts": 1, "parking_topic": "OFFSET_MOVED_EVENT"},
            "setting parking_topic is .*only brokers write",
        ),
        ("archive", ARCHIVE | {"group": "a,b"}, "setting group is 'a,b'"),
        ("mirror", MIRROR | {"to_topic": "a,b"}, "setting to_topic is 'a,b'"),
        ("metrics", STREAM | {"to_topic": "a,b"}, "setting to_topic is 'a,b'"),
        ("audit", {"mirror": "a,b", "source_namesrv": "a:1"}, "setting mirror is 'a,b'"),
        ("audit", {"mirror": "a", "source_namesrv": "a:1", "format": "delta"}, "setting format is for an archive"),
        ("metrics", STREAM | {"to": "/w", "delivery": "idempotent"}, "setting delivery is for setting to_topic"),
        ("metrics", STREAM | {"to_prometheus": "/tmp/w", "delivery": "atLeastOnce"}, "setting delivery is for setting"),
        ("replay", REPLAY | {"delivery": "atLeastOnce"}, "setting job is for delivery idempotent and exactlyOnce"),
        ("redrive", {"group": "a", "job": "1", "delivery": "atLeastOnce"}, "setting job is for delivery idempotent"),
        ("audit", {"archive": "/lake", "report": "/lake/"}, "are the same folder"),
        ("audit", {"archive": "/lake", "report": "/lake/../lake"}, "are the same folder"),
        ("audit", {"archive": "file:///lake", "report": "/lake"}, "are the same folder"),
        ("audit", {"archive": "/lake", "report": "/lake/report"}, "setting report is /lake/report, inside the folder"),
        ("audit", {"archive": "/lake/orders", "report": "/lake"}, "setting archive is /lake/orders, inside the folder"),
        ("archive", ARCHIVE | {"checkpoint": "/lake/checkpoint"}, "setting checkpoint is /lake/checkpoint, inside"),
        ("archive", ARCHIVE | {"checkpoint": f"{__file__}/checkpoint"}, "is a file; name a folder"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_spark_starts(job, values, text):
    with pytest.raises(UsageError, match=text):
        build(JOBS[job], values)


@pytest.mark.parametrize(
    ("job", "values"),
    [
        ("archive", ARCHIVE | {"checkpoint": "/lake/_checkpoint"}),
        ("archive", ARCHIVE | {"checkpoint": "/lakes"}),
        ("audit", {"archive": "/lake", "report": "/lake/_reports/today"}),
        ("audit", {"archive": "s3://lake/orders", "report": "/lake/orders"}),
        ("replay", {"archive": "/lake", "topic": "orders", "delivery": "atLeastOnce"}),
        ("metrics", STREAM | {"to_topic": "windows", "delivery": "idempotent"}),
        *(
            ("archive", ARCHIVE | {"master": master})
            for master in (
                "local",
                "local[*]",
                "local[2]",
                "local[*,3]",
                "local[2, 3]",
                "local-cluster[2,1,1024]",
                "spark://a:7077,b:7077",
                "yarn",
                "k8s://https://a:6443",
                "other://a",
            )
        ),
    ],
)
def test_settings_that_go_together_are_accepted(job, values):
    build(JOBS[job], values)


@pytest.mark.parametrize("moment", ["", "2026-01-31", "2026-01-31 12:00", "2026-01-31T12:00:00.5Z"])
def test_moments_are_taken_as_spark_takes_them(moment):
    assert build(JOBS["replay"], REPLAY | {"since": moment}).since == moment


@pytest.mark.parametrize("name", ["lag_json", "lag_prometheus", "to_prometheus"])
def test_the_folder_of_a_file_that_is_written_later_must_be_there(name, tmp_path):
    job, values = ("metrics", STREAM) if name == "to_prometheus" else ("archive", ARCHIVE)
    build(JOBS[job], values | {name: str(tmp_path / "figures")})
    with pytest.raises(UsageError, match=f"setting {name} is .*there is no folder {tmp_path / 'nodir'}"):
        build(JOBS[job], values | {name: str(tmp_path / "nodir" / "figures")})


def test_formats_are_those_of_archives():
    pytest.importorskip("pyarrow")
    from pyromq.spark.archive import tables as archive_tables

    assert settings.FORMATS == archive_tables.FORMATS


@pytest.mark.parametrize("job", JOBS.values())
def test_every_setting_says_what_it_is_for(job):
    from pyromq.spark.jobs.settings import flags

    assert all(each.metadata["doc"].endswith((".", "`.")) for each, _ in flags(job))


def test_pairs_are_split_at_the_first_equals_sign():
    assert pairs(("a=b=c", "d=")) == {"a": "b=c", "d": ""}
    with pytest.raises(UsageError, match="'x' is not of the form"):
        pairs(("x",))


def test_what_only_counts_needs_no_name():
    assert build(JOBS["replay"], {"archive": "/lake", "topic": "orders", "dry_run": True}).job == ""
    assert build(JOBS["redrive"], {"group": "billing", "dry_run": True}).job == ""
