"""`pyromq spark JOB` to its end: settings in YAML or flags, a table, and exit codes that tell what was found."""

import io
import json
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("yaml")

from pyspark.errors import StreamingQueryException

from pyromq import Admin, Message, Producer
from pyromq.cli.commands import spark_commands
from pyromq.cli.main import run
from pyromq.errors import MQError
from pyromq.spark.jobs.settings import JOBS

pytestmark = pytest.mark.spark

COUNT = 60


@pytest.fixture(scope="module")
def topic(namesrv, spark):
    name = "commands"
    with Admin(namesrv) as admin, Producer("commands-test", namesrv) as producer:
        admin.create_topic(name, 2)
        for future in [producer.send_soon(Message(name, b"%d" % number)) for number in range(COUNT)]:
            future.result()
    return name


@pytest.fixture(scope="module")
def archive(namesrv, topic, tmp_path_factory):
    """The topic archived by a command that reads its settings from a file."""
    folder = tmp_path_factory.mktemp("archive")
    lines = {"namesrv": namesrv, "topics": topic, "to": folder / "lake", "checkpoint": folder / "checkpoint"}
    file = folder / "archive.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()) + "once: false\nbatch_rows: 25\n")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert run(["spark", "archive", "--file", str(file), "--once", "-o", "json"]) == 0  # flags win
    assert sum(row["read"] for row in json.loads(out.getvalue())) == COUNT
    assert f"{COUNT} messages in 3 batches" in err.getvalue()
    return folder


@pytest.fixture
def archived(archive, tmp_path):
    """A copy of the archive; its checkpoint is beside it."""
    shutil.copytree(archive, tmp_path, dirs_exist_ok=True)
    return tmp_path / "lake"


def test_an_audit_says_by_its_exit_code_what_it_found(namesrv, topic, archived, tmp_path, capsys):
    audit = ["spark", "audit", "--archive", str(archived), "--namesrv", namesrv, "--report", str(tmp_path / "report")]
    assert run(audit) == 0
    said = capsys.readouterr()
    assert said.out.split()[:5] == ["topic", "broker", "queue", "first", "last"]
    assert f"{COUNT} rows: 0 lost, 0 repeated, 0 disordered" in said.err
    min(archived.glob("topic=*/date=*/*.parquet")).unlink()  # of the first batch: the rest was archived later
    assert run(audit) == 1
    assert " 0 lost" not in capsys.readouterr().err
    assert list((tmp_path / "report").glob("*.parquet"))


def test_a_checkpoint_is_shown_and_set_anew(namesrv, topic, archived, tmp_path, capsys):
    describe = ["spark", "describe", str(tmp_path / "checkpoint"), "--namesrv", namesrv, "-o", "json"]
    assert run(describe) == 0
    assert [row["lag"] for row in json.loads(capsys.readouterr().out)] == [0, 0]
    assert run([*describe, "--reset", "earliest", "--yes"]) == 0
    assert sum(row["lag"] for row in json.loads(capsys.readouterr().out)) == COUNT


def test_what_a_job_fails_with_is_one_line(namesrv, topic, tmp_path, capsys):
    archive = ["spark", "archive", "--namesrv", namesrv, "--to", str(tmp_path / "lake"), "--once"]
    archive += ["--checkpoint", str(tmp_path / "checkpoint")]
    assert run([*archive, "--topics", "nowhere"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "for the topic: nowhere" in line


def test_jobs_that_write_say_how_much(namesrv, topic, archived, capsys):
    with Admin(namesrv) as admin:
        for name in (f"{topic}-again", f"{topic}-windows"):
            admin.create_topic(name, 2)
    replay = ["spark", "replay", "--namesrv", namesrv, "--archive", str(archived), "--topic", topic, "--job", topic]
    assert run([*replay, "--to-topic", f"{topic}-again"]) == 0
    assert f"{COUNT} messages sent to {topic}-again" in capsys.readouterr().err
    assert run(["spark", "redrive", "--namesrv", namesrv, "--group", "nobody", "--job", topic]) == 1
    assert "%DLQ%nobody" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (b"", "must hold settings"),
        (b"- a", "must hold settings"),
        (b"a: b: c", "is not YAML: mapping values are not allowed here"),
        (b"since: 2026-13-45", "is not YAML: month must be in 1..12"),
        (b"to: caf\xe9", "is not UTF-8"),
    ],
)
def test_a_file_that_holds_no_settings_is_wrong_usage(settings, text, tmp_path, capsys):
    file = tmp_path / "archive.yaml"
    file.write_bytes(settings)
    assert run(["spark", "archive", "--file", str(file)]) == 2
    assert text in capsys.readouterr().err


def test_places_and_names_that_cannot_be_are_wrong_usage(tmp_path, capsys):
    assert run(["spark", "describe", str(tmp_path), "--reset", "foo", "--yes"]) == 2
    assert "is 'foo'; write earliest, latest" in capsys.readouterr().err
    assert run(["spark", "init", str(tmp_path / "new"), "--topic", "a b"]) == 2
    assert "illegal characters" in capsys.readouterr().err
    assert run(["spark", "init", str(tmp_path / "new"), "--topic", "a", "--namesrv", "nowhere"]) == 2
    assert "name server address 'nowhere' is not host:port" in capsys.readouterr().err
    assert run(["spark", "archive", "--to", "/x", "--topics", "a", "--checkpoint", "/y", "--format", "pq"]) == 2
    assert "--format is 'pq'; write parquet or delta" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("replay", "--archive", "/x", "--topic", "a"), "--job is missing"),
        (("audit", "--mirror", "a"), "--mirror needs --source-namesrv"),
        (("redrive", "--group", "a", "--job", "b", "--attempts", "3"), "--parking-topic belong together"),
    ],
)
def test_errors_name_the_flags(arguments, text, capsys):
    assert run(["spark", *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "text", "hint"),
    [
        ("archive", "set failOnDataLoss to false", "(here: --option failOnDataLoss=VALUE)"),
        ("archive", "option startingOffsets is 'x'", "(here: --start)"),
        ("mirror", "set option onTooLarge to drop", "(here: --to-option onTooLarge=VALUE)"),
        ("replay", "option jobId is for delivery=idempotent", "(here: --job)"),
    ],
)
def test_options_of_spark_are_followed_by_their_flags(job, text, hint):
    assert spark_commands._in_flags(text, JOBS[job], {}) == f"{text} {hint}"


def test_a_query_is_not_moved_where_nobody_can_be_asked(tmp_path, capsys, monkeypatch):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert run(["spark", "describe", str(tmp_path), "--reset", "earliest"]) == 2
    assert "add --yes" in capsys.readouterr().err


TRACEBACK = """[STREAM_FAILED] Query [id = 9e0b] terminated with exception: Traceback (most recent call last):
  File "archive_files.py", line 65, in make_folder_of
    self.files.create_dir(name, recursive=True)
{raised}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: archive [id = 9e0b]
Current State: ACTIVE
"""


def test_of_nested_java_exceptions_the_inner_text_is_told():
    raised = """Error while instantiating 'SessionStateBuilder':

JVM stacktrace:
java.lang.IllegalArgumentException: Error while instantiating 'SessionStateBuilder':
\tat org.apache.spark.sql.Dataset
Caused by: org.apache.spark.SparkIllegalArgumentException: The value 'abc' in the config "a.b" is invalid.
\t... 19 more"""

    def job(tell):
        raise StreamingQueryException(raised)

    with pytest.raises(MQError, match=r"^The value 'abc' in the config \"a\.b\" is invalid\.$"):
        spark_commands._with_progress(job)


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("FileNotFoundError: cannot create '/x'", "FileNotFoundError: cannot create '/x'"),
        ("KeyError: 1\n\nDuring handling\n\nValueError: no 2", "ValueError: no 2"),
        ("pyromq.errors.UsageError: column a is missing", "column a is missing"),
    ],
)
def test_of_a_traceback_in_a_task_its_error_is_told(raised, text):
    def job(tell):
        raise StreamingQueryException(TRACEBACK.format(raised=raised))

    with pytest.raises(MQError) as told:
        spark_commands._with_progress(job)
    assert str(told.value) == text
