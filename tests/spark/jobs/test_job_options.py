"""Options of jobs are checked before Spark starts. Without Spark."""

import pytest

from pyromq.cli.main import run as command
from pyromq.errors import MQError, UsageError
from pyromq.spark.jobs import settings
from pyromq.spark.jobs.job_options import check_options, source_options
from pyromq.spark.jobs.settings import JOBS, build

STREAM = {"topics": "orders", "checkpoint": "/checkpoint"}
VALUES = {
    "archive": STREAM | {"to": "/lake"},
    "replay": {"archive": "/lake", "topic": "orders", "job": "1"},
    "redrive": {"group": "billing", "job": "1"},
    "audit": {"archive": "/lake"},
    "metrics": STREAM | {"to_topic": "windows"},
    "mirror": STREAM | {"to_namesrv": "b:1"},
}


def check(job, /, **values):
    check_options(job, build(JOBS[job], VALUES[job] | values))


@pytest.mark.parametrize("job", JOBS)
def test_settings_of_each_job_are_accepted(job):
    check(job)


@pytest.mark.parametrize("job", ["archive", "redrive", "audit", "metrics", "mirror"])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("tagFiter=a", "option 'tagFiter' is unknown; did you mean tagFilter?"),
        ("nmae=a", "option 'nmae' is unknown"),
        ("tagFilter=a b", "option tagFilter is 'a b'"),
        ("deadlineMs=soon", "option deadlineMs is 'soon'"),
        ("tlsServrName=x", "did you mean tlsServerName?"),
        ("tls=perhaps", "option tls is 'perhaps'; write true or false"),
        ("secretKey=4711", "option secretKey is given without accessKey"),
        ("tlsCa=nowhere.pem", "option tlsCa is 'nowhere.pem', and there is no such file"),
        ("delivery=exactlyOnce", "option delivery is for a write, this is a read"),
        ("kafka.group.id=x", "that is option group"),
        ("spark.executor.memory=1g", "settings of Spark are given to the session"),
    ],
)
def test_an_option_that_the_source_refuses_is_named(job, option, text):
    with pytest.raises(MQError) as caught:
        check(job, option=option)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("job", "values", "text"),
    [
        ("archive", {"option": "endingOffsets=latest"}, "option endingOffsets is for a batch, and this is a stream"),
        ("redrive", {"option": "newQueues=latest"}, "option newQueues is for a stream, and this is a batch"),
        ("archive", {"start": "{"}, "option startingOffsets is '{'"),
        ("archive", {"option": ["minOffsetsPerTrigger=9"], "batch_rows": 3}, "minOffsetsPerTrigger 9 is more than"),
        ("mirror", {"to_option": "onTolarge=drop"}, "did you mean onTooLarge?"),
        ("mirror", {"to_option": "startingOffsets=latest"}, "option startingOffsets is for a read, this is a write"),
        ("mirror", {"to_option": "ledger=a", "delivery": "idempotent"}, "option ledger is for delivery=exactlyOnce"),
        ("mirror", {"to_option": "tlsServerName=b"}, "option tlsServerName is for TLS, which is off"),
        ("metrics", {"to_topic": "SCHEDULE_TOPIC_XXXX"}, "only brokers write to this topic"),
        ("replay", {"to_topic": "SCHEDULE_TOPIC_XXXX"}, "only brokers write to this topic"),
        ("redrive", {"job": "x" * 129}, "write 1 to 128 printable characters"),
    ],
)
def test_options_that_do_not_fit_the_job_are_named(job, values, text):
    with pytest.raises(UsageError) as caught:
        check(job, **values)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ("sprak.sql.shuffle.partitions=2", "did you mean spark.sql.shuffle.partitions?"),
        ("Spark.log.level=ERROR", "did you mean spark.log.level?"),
        ("nmae=x", "setting conf has 'nmae', and settings of Spark have dots"),
        (["spark.log.level=ERROR", "spark.log.level=OFF"], "spark.log.level is given twice"),
        ("=x", "'=x' is not of the form NAME=VALUE"),
    ],
)
def test_names_that_are_no_settings_of_spark_are_refused(conf, text):
    with pytest.raises(UsageError) as caught:
        check("archive", conf=conf)
    assert text in str(caught.value)
    check("archive", conf=["fs.s3a.access.key=me", "parquet.compression=zstd"])


def test_an_option_of_the_user_overrides_settings():
    job = build(JOBS["archive"], VALUES["archive"] | {"option": ["GROUP=mine", "startingTimestamp=0"]})
    options = source_options("archive", job)
    assert options["GROUP"] == "mine"
    assert not {"group", "startingOffsets"} & options.keys()


def test_a_program_gets_the_error_before_spark_is_imported(monkeypatch):
    monkeypatch.setattr(settings, "import_module", lambda name: pytest.fail(f"imports {name}"))
    with pytest.raises(UsageError, match="did you mean tagFilter"):
        settings.run("archive", build(JOBS["archive"], VALUES["archive"] | {"option": "tagFiter=a"}), print)


def test_a_command_ends_with_wrong_usage_and_names_the_flag(capsys):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in VALUES["mirror"].items()]
    assert command(["spark", "mirror", *flags, "--option", "tagFiter=a"]) == 2
    assert "did you mean tagFilter? (here: --option tagFilter=VALUE)" in capsys.readouterr().err
    assert command(["spark", "mirror", *flags, "--option", "sqlFilter=a >"]) == 2
    assert "it ends at character 4" in capsys.readouterr().err
    assert command(["spark", "mirror", *flags, "--to-option", "onTolarge=drop"]) == 2
    assert "did you mean onTooLarge? (here: --to-option onTooLarge=VALUE)" in capsys.readouterr().err


def test_a_file_of_settings_has_its_options_checked_as_well(tmp_path, capsys):
    pytest.importorskip("yaml")
    file = tmp_path / "audit.yaml"
    file.write_text("archive: /lake\noption: [retiredBroker=a]\n")
    assert command(["spark", "audit", "--file", str(file)]) == 2
    assert "did you mean retiredBrokers?" in capsys.readouterr().err
