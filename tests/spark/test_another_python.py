"""Where `python3` of the PATH is not the Python that has the package: what docs/spark-cluster.md says is enough."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from pyromq import Admin, Message, Producer

pytestmark = [pytest.mark.spark, pytest.mark.soak]

CONF = ("--master", "local[1]", "--conf", f"spark.pyspark.python={sys.executable}", "--conf", "spark.ui.enabled=false")
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pyspark_rocketmq import DefaultSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(DefaultSource)
read = spark.read.format("rocketmq").options(namesrvAddr=sys.argv[1], subscribe=sys.argv[2])
print("found", read.load().count())
"""


@pytest.fixture
def environment(tmp_path):
    """One whose `python3` knows nothing, and that names no other."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexec /usr/bin/env -i /bin/false\n")
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    home = Path(pyspark.__file__).parent
    return kept | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture
def topic(namesrv):
    name = f"python-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin, Producer("python-test", namesrv) as producer:
        admin.create_topic(name, 1)
        for _ in range(3):
            producer.send(Message(name, b"1"))
    return name


def run(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_a_job_runs_with_the_python_of_its_conf(namesrv, topic, environment, tmp_path):
    places = ("--topics", topic, "--to", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "checkpoint"))
    command = [sys.executable, "-m", "pyromq", "spark", "archive", "--once", "--namesrv", namesrv, *places, *CONF]
    assert "3 messages in 1 batch" in run(command, environment)


def test_a_program_that_registers_the_source_runs_with_the_python_of_its_conf(namesrv, topic, environment, tmp_path):
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    submit = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit")
    assert "found 3" in run([submit, *CONF, str(program), namesrv, topic], environment)
