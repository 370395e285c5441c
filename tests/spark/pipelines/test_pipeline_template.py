"""The project that `pyromq spark init` writes: it says what it guards against, and runs."""

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from pyromq import Admin, Message, Producer
from pyromq.errors import UsageError
from pyromq.spark.pipeline_template import write_project

PROGRAMS = Path(sys.executable).parent


def test_a_project_is_written_for_the_topic(tmp_path):
    files = write_project(tmp_path / "flights", topic="Flights-1", namesrv="a:1")
    assert [path.name for path in files] == ["spark-pipeline.yml", "flights_1.py", "flights_1_per_hour.py", "run"]
    for path in files[1:3]:
        compile(path.read_text(), path.name, "exec")
    assert '"pipelines.reset.allowed": "false"' in files[1].read_text()
    assert os.access(files[3], os.X_OK)


def test_a_folder_that_exists_is_left_alone(tmp_path):
    with pytest.raises(UsageError, match="exists already"):
        write_project(tmp_path, topic="x", namesrv="a:1")


def test_run_finds_its_environment_and_says_what_is_missing(tmp_path):
    *_, run = write_project(tmp_path / "flights", topic="flights", namesrv="a:1")
    assert f"PATH={PROGRAMS}:$PATH" in run.read_text()
    run.write_text(run.read_text().replace(str(PROGRAMS), str(tmp_path)))
    done = subprocess.run([run], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "spark-pipelines is not on the PATH" in done.stderr) == (1, True)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None and not os.environ.get("JAVA_HOME"), reason="no Java")
@pytest.mark.skipif(not (PROGRAMS / "spark-pipelines").exists(), reason="no spark-pipelines")
def test_a_project_runs_twice_and_reads_each_message_once(namesrv, tmp_path):
    topic = f"template_{uuid.uuid4().hex[:8]}"
    folder = tmp_path / "project"
    write_project(folder, topic=topic, namesrv=namesrv)
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 2)
    for count in (30, 60):
        with Producer("template-test", namesrv) as producer:
            for number in range(30):
                producer.send(Message(topic, b"%d" % number))
        done = subprocess.run([folder / "run"], env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        assert rows(folder, topic) == count


def rows(folder, topic):
    dataset = pytest.importorskip("pyarrow.dataset")
    files = (folder / "spark-warehouse" / topic).glob("*.parquet")
    return dataset.dataset([str(path) for path in files], format="parquet").count_rows()
