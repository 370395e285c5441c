"""Options of jobs are checked before Spark starts. Without Spark."""

import sys
from pathlib import Path

import pytest

from pyromq.cli.main import run as command
from pyromq.errors import MQError, UsageError
from pyromq.spark.jobs import settings
from pyromq.spark.jobs.job_checks import NEEDED, check_job
from pyromq.spark.jobs.job_options import reads_and_writes, source_options
from pyromq.spark.jobs.settings import JOBS, Archive, build
from pyromq.spark.write.sink_options import SinkOptions

STREAM = {"topics": "orders", "checkpoint": "/checkpoint"}
LAKE = str(Path(__file__).parent)  # a folder that exists; its content is not read
VALUES = {
    "archive": STREAM | {"to": "/lake"},
    "replay": {"archive": LAKE, "topic": "orders", "job": "1"},
    "redrive": {"group": "billing", "job": "1"},
    "audit": {"archive": LAKE},
    "metrics": STREAM | {"to_topic": "windows"},
    "mirror": STREAM | {"to_namesrv": "b:1"},
}


def check(job, /, **values):
    check_job(job, build(JOBS[job], VALUES[job] | values))


@pytest.mark.parametrize("job", JOBS)
def test_settings_of_each_job_are_accepted(job):
    check(job)


@pytest.mark.parametrize("job", ["archive", "redrive", "metrics", "mirror"])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("columns=bdy", "column 'bdy' does not exist; did you mean body?"),
        ("tagFilter=a b", "option tagFilter is 'a b'"),
        ("verifyCrc=yes", "option verifyCrc is 'yes'; write true or false"),
        ("pullBytes=9g", "option pullBytes is '9g'; write bytes from 1"),
        ("maxBodyBytes=0", "option maxBodyBytes is '0'"),
        ("minPartitions=-1", "option minPartitions is '-1'; write a whole number from 1"),
        ("startingOffsetsByTimestampStrategy=erorr", "is 'erorr'; write latest or error"),
        ('startingOffsetsByTimestamp={"ordres":{"b":{"0":0}}}', "names topic 'ordres', which this read does not have"),
    ],
)
def test_a_value_that_the_source_refuses_is_named(job, option, text):
    with pytest.raises(MQError) as caught:
        check(job, option=option)
    assert text in str(caught.value)


@pytest.mark.parametrize("job", ["archive", "redrive", "audit", "metrics", "mirror"])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("tagFiter=a", "option 'tagFiter' is unknown; did you mean tagFilter?"),
        ("nmae=a", "option 'nmae' is unknown"),
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


def test_a_time_replaces_the_default_of_setting_start():
    job = build(JOBS["archive"], VALUES["archive"] | {"option": ["startingTimestamp=0"]})
    check_job("archive", job)
    assert "startingOffsets" not in source_options("archive", job)
    with pytest.raises(UsageError, match="setting start is 'latest', and option startingTimestamp says where to begin"):
        check("archive", start="latest", option="startingTimestamp=0")


@pytest.mark.parametrize("job", ["archive", "metrics", "mirror"])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("namesrvAddr=a:1", "option namesrvAddr is set by setting namesrv; leave"),
        ("endpoints=a:1", "option endpoints is set by setting namesrv; leave"),
        ("SUBSCRIBE=a", "option subscribe is set by setting topics; leave"),
        ("subscribePattern=a.*", "option subscribePattern is set by setting topics; leave"),
        ('assign={"a":{"b":[0]}}', "option assign is set by setting topics; leave"),
        ("startingOffsets=latest", "option startingOffsets is set by setting start; leave"),
        ("maxOffsetsPerTrigger=3", "option maxOffsetsPerTrigger is set by setting batch_rows; leave"),
        ("Group=mine", "option group is set by setting group; leave"),
        ("onUndecodable=null", "option onUndecodable is set by the job: a body that cannot be decompressed is "),
        ("columns=bdy", "did you mean body?"),
        ("columns=body", "option columns leaves out column "),
    ],
)
def test_an_option_that_a_streaming_job_sets_is_refused(job, option, text):
    with pytest.raises(UsageError) as caught:
        check(job, option=option)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("job", "values", "text"),
    [
        ("mirror", {"to_option": "topic=a"}, "option topic is set by setting to_topic"),
        ("mirror", {"to_option": "TOPIC=a"}, "option topic is set by setting to_topic"),
        ("mirror", {"to_option": "delivery=idempotent"}, "option delivery is set by setting delivery"),
        ("mirror", {"to_option": "namesrvAddr=c:1"}, "option namesrvAddr is set by setting to_namesrv"),
        ("mirror", {"to_option": "endpoints=c:1"}, "option endpoints is set by setting to_namesrv"),
        ("mirror", {"to_option": "nullBody=drop"}, "option nullBody is set by the job: copies are unchanged"),
        ("mirror", {"to_option": "verifyTags=true"}, "option verifyTags is set by the job: copies are unchanged"),
        ("mirror", {"to_option": "jobId=a"}, "option jobId is for a batch, and this is a stream"),
        ("mirror", {"to_option": "orderBy=shardingKey"}, "option orderBy has no effect: the job writes columns of its"),
        ("mirror", {"to_option": "extraColumns=drop"}, "option extraColumns has no effect"),
        ("mirror", {"to_option": "delayLevels=20"}, "option delayLevels has no effect"),
        ("mirror", {"option": "systemProperties=true"}, "option systemProperties has no effect"),
        ("metrics", {"option": "systemProperties=true"}, "option systemProperties has no effect"),
        ("redrive", {"option": "systemProperties=false"}, "option systemProperties is set by the job: "),
        ("redrive", {"option": "onUndecodable=null"}, "option onUndecodable is set by the job"),
        ("redrive", {"option": "namesrvAddr=a:1"}, "option namesrvAddr is set by setting namesrv"),
        ("redrive", {"option": "subscribe=a"}, "option subscribe is set by setting group"),
        ("redrive", {"option": "subscribePattern=a"}, "option subscribePattern is set by setting group"),
        ("redrive", {"option": "columns=body"}, "option columns leaves out column "),
        ("audit", {"option": "namesrvAddr=a:1"}, "option namesrvAddr is set by setting namesrv"),
        ("audit", {"option": "subscribe=a"}, "option subscribe is set by setting topics"),
        ("audit", {"option": "tagFilter=a"}, "option tagFilter has no effect: the job counts all messages; leave"),
        ("audit", {"option": "columns=body"}, "option columns has no effect"),
        ("audit", {"option": "startingTimestamp=0"}, "option startingTimestamp has no effect"),
        ("audit", {"option": "pullBytes=1m"}, "option pullBytes has no effect"),
        ("audit", {"option": "group=a"}, "option group has no effect"),
    ],
)
def test_an_option_that_a_job_sets_or_ignores_is_refused(job, values, text):
    with pytest.raises(UsageError) as caught:
        check(job, **values)
    assert text in str(caught.value)


MIRRORED = {"archive": "", "mirror": "orders", "source_namesrv": "a:1"}


def test_an_audit_of_a_mirror_names_its_own_settings():
    check("audit", **MIRRORED, option=["deadlineMs=5s", "retiredBrokers=b", "failOnDataLoss=false"])
    with pytest.raises(UsageError, match="option namesrvAddr is set by setting source_namesrv"):
        check("audit", **MIRRORED, option="namesrvAddr=a:1")
    with pytest.raises(UsageError, match="option subscribe is set by setting mirror"):
        check("audit", **MIRRORED, option="subscribe=a")


def test_options_that_change_what_a_job_reads_are_accepted():
    check("archive", option=["tagFilter=a", "systemProperties=true", "startingTimestamp=0", "maxBytesPerTrigger=9m"])
    check("archive", option=["columns=topic,brokerName,queueId,queueOffset,storeTimestamp,body"])
    check("metrics", option=["columns=topic,tags,body,bornTimestamp,storeTimestamp", "commitOffsets=false"])
    check("mirror", to_option=["onTooLarge=drop", "waitVisible=false", "group=mirrors", "inflight=8"])
    check("redrive", option=["requiredBrokers=b", "startingTimestamp=0", "group=mine"])


def test_an_archive_needs_the_columns_of_its_files():
    pytest.importorskip("pyarrow")
    from pyromq.spark.archive import archive_files

    assert NEEDED[Archive] == archive_files.NEEDED


@pytest.mark.parametrize("job", ["redrive", "metrics"])
def test_connection_options_of_a_job_are_those_of_its_writes_too(job):
    settings = build(JOBS[job], VALUES[job] | {"option": ["namespace=shop", "accessKey=me", "secretKey=4711"]})
    *_, write = reads_and_writes(job, settings)
    assert isinstance(write, SinkOptions)
    assert (write.connecting.namespace, write.connecting.connections().access_key) == ("shop", "me")


@pytest.mark.parametrize(
    ("job", "conf", "text"),
    [
        ("archive", "spark.master=local[2]", "spark.master is set by setting master; leave"),
        ("archive", "spark.sql.streaming.checkpointLocation=/c", "is set by setting checkpoint; leave"),
        ("audit", "spark.sql.sources.partitionColumnTypeInference.enabled=true", "is set by the job: "),
        ("replay", "spark.pyspark.driver.python=python3", "has no effect: the driver runs already"),
    ],
)
def test_a_setting_of_spark_that_a_job_sets_or_ignores_is_refused(job, conf, text):
    with pytest.raises(UsageError) as caught:
        check(job, conf=conf)
    assert text in str(caught.value)


def test_a_python_of_local_tasks_that_does_not_exist_is_named():
    check("archive", conf=f"spark.pyspark.python={sys.executable}")
    check("archive", conf="spark.pyspark.python=./env/bin/python", master="yarn")
    for python in ("/opt/nowhere/python3", "python3.nowhere"):
        with pytest.raises(UsageError, match=f"spark.pyspark.python={python}, and there is no such program"):
            check("archive", conf=f"spark.pyspark.python={python}")


def test_a_file_that_is_no_certificate_is_named(tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_text("no certificate")
    for job in ("archive", "redrive", "audit", "metrics", "mirror"):
        with pytest.raises(UsageError, match=r"TLS authority .*ca\.pem cannot be used: it has no certificate"):
            check(job, option=f"tlsCa={tmp_path / 'ca.pem'}")
    with pytest.raises(UsageError, match=r"TLS authority .*ca\.pem cannot be used"):
        check("mirror", to_option=f"tlsCa={tmp_path / 'ca.pem'}")
    monkeypatch.setenv("PYROMQ_TLS_CA", str(tmp_path / "ca.pem"))
    for job in JOBS:
        with pytest.raises(UsageError, match=r"TLS authority .*ca\.pem cannot be used"):
            check(job)


def test_a_local_archive_that_is_missing_is_named(tmp_path):
    for job in ("audit", "replay"):
        for place in (str(tmp_path / "nothing"), f"file://{tmp_path}/nothing"):
            with pytest.raises(UsageError, match=r"there is no archive at .*nothing"):
                check(job, archive=place)
        with pytest.raises(UsageError, match="is no Delta table; correct setting format"):
            check(job, format="delta")
        check(job, archive="s3a://bucket/lake")
        check(job, archive="lake", master="yarn")  # Spark's default file system may be another one
        check(job, archive="lake", conf="spark.hadoop.fs.defaultFS=hdfs://a:1")


def test_a_delta_table_needs_its_format(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    check("audit", archive=str(tmp_path), format="delta")
    with pytest.raises(UsageError, match="is a Delta table; correct setting format"):
        check("audit", archive=str(tmp_path))


def test_a_lag_file_is_written_by_one_writer(tmp_path):
    file = tmp_path / "lag.prom"
    check("archive", option=f"lagPrometheus={file}")
    with pytest.raises(UsageError, match="setting lag_prometheus and option lagPrometheus are the same file"):
        check("archive", option=f"lagPrometheus={file}", lag_prometheus=str(file))


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
    assert command(["spark", "mirror", *flags, "--option", "columns=bdy"]) == 2
    assert "did you mean body?" in capsys.readouterr().err
    assert command(["spark", "mirror", *flags, "--to-option", "topic=copy"]) == 2
    assert "option topic is set by --to-topic; leave it out of --to-option\n" in capsys.readouterr().err
    assert command(["spark", "mirror", *flags, "--option", "group=a"]) == 2
    assert "option group is set by --group; leave it out of --option\n" in capsys.readouterr().err
    for option in ("group=a b", "deadlineMs=never"):
        assert command(["spark", "mirror", *flags, "--to-option", option]) == 2
        assert f"(here: --to-option {option.partition('=')[0]}=VALUE)" in capsys.readouterr().err


def test_a_file_of_settings_has_its_options_checked_as_well(tmp_path, capsys):
    pytest.importorskip("yaml")
    file = tmp_path / "audit.yaml"
    file.write_text(f"archive: {LAKE}\noption: [retiredBroker=a]\n")
    assert command(["spark", "audit", "--file", str(file)]) == 2
    assert "did you mean retiredBrokers?" in capsys.readouterr().err
