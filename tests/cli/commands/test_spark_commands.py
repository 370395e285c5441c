"""`pyromq spark`: flags, YAML, exit codes; jobs themselves are tested in tests/spark."""

import logging
import subprocess
import sys

import pytest

from pyromq.cli.commands.spark_commands import quiet_py4j
from pyromq.cli.main import run


def test_help_loads_no_pyspark():
    code = (
        "import sys; from pyromq.cli.main import run; run(['spark', 'archive', '--help']); "
        "sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--checkpoint" in done.stdout


@pytest.mark.parametrize("job", ["archive", "replay", "redrive", "audit", "metrics", "mirror", "describe"])
def test_every_job_has_help(job, capsys):
    assert run(["spark", job, "--help"]) == 0
    assert "Usage: pyromq spark" in capsys.readouterr().out


def test_a_missing_setting_is_named(capsys):
    assert run(["spark", "archive", "--to", "/lake"]) == 2
    assert "--topics is missing" in capsys.readouterr().err


@pytest.mark.parametrize("java_home", [True, False])
def test_a_machine_without_java_is_told_in_one_line(java_home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if java_home:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    arguments = ["--archive", str(tmp_path), "--topic", "orders", "--job", "1"]
    assert run(["spark", "replay", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Spark needs Java 17 or 21" in line
    assert (f"JAVA_HOME is {tmp_path}" if java_home else "no java on the PATH") in line


def test_a_wrong_interval_is_refused_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    arguments = ["--topics", "orders", "--to", "/lake", "--checkpoint", "/checkpoint", "--every", "banana"]
    assert run(["spark", "archive", *arguments]) == 2
    assert "--every is 'banana'; write a duration" in capsys.readouterr().err


def test_settings_come_from_a_file_and_mistakes_in_it_are_named(tmp_path, capsys):
    pytest.importorskip("yaml")
    file = tmp_path / "archive.yaml"
    file.write_text("to: /lake\ntopic: orders\n")
    assert run(["spark", "archive", "--file", str(file)]) == 2
    assert "setting 'topic' is unknown; did you mean topics" in capsys.readouterr().err


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path, capsys):
    assert run(["spark", "describe", str(tmp_path)]) == 1
    assert "is no checkpoint of a streaming query" in capsys.readouterr().err


def test_calls_that_ctrl_c_interrupts_leave_no_stack_traces(caplog):
    with quiet_py4j():
        logging.error("Exception while sending command.")
        logging.error("KeyboardInterrupt while sending command.")
        logging.error("an error of the program")
    logging.error("Exception while sending command.")
    assert caplog.messages == ["an error of the program", "Exception while sending command."]
