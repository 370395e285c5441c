"""Each optional part without one of its packages: the error names the package and the command that installs it."""

import subprocess
import sys
from importlib.metadata import metadata

import pytest

from pyromq.extras import install_command, is_installed

COMMAND = "from pyromq.cli.main import main; sys.argv = ['pyromq', *{!r}]; main()"
LZ4, ZSTANDARD = (f"from pyromq.compression import decompress; decompress(b'x', {flag})" for flag in (1 << 8, 2 << 8))
ETCD = ("serve", "broker", "--namesrv", "127.0.0.1:1", "--etcd", "http://127.0.0.1:1", "--data")
ARCHIVE = ("spark", "archive", "--topics", "orders", "--checkpoint", "/nowhere/cp", "--to", "/nowhere/to")
WITHOUT_CODE = {"demo", "dev", "release"}  # extras for people who work on pyromq

# extra, missing module, a program or command of this part
PARTS = [
    ("cli", "click", ("topic", "list")),
    ("console", "starlette", ("console",)),
    ("console", "uvicorn", ("console",)),
    ("console", "jinja2", ("console",)),
    ("console", "argon2", ("serve", "--console", "--data")),
    ("console", "python_multipart", ("console",)),
    ("grpc", "hpack", ("proxy",)),
    ("grpc", "google", ("proxy",)),
    ("grpc", "google.protobuf", ("serve", "--grpc-port", "1", "--data")),
    ("grpc", "cryptography", ("proxy",)),
    ("failover", "httpx", ETCD),
    ("spark", "pyspark", ARCHIVE),
    ("spark", "pyspark", "import pyromq.spark.typed"),
    ("spark", "pyarrow", "import pyromq.spark.typed"),
    ("spark", "pyspark", "import pyromq.spark.threads"),
    ("spark", "pyspark", "from pyromq.spark.monitoring.lag_listener import LagListener"),
    ("celery", "kombu", "import pyromq.celery"),
    ("celery", "kombu", "import pyromq.celery.kombu_transport"),
    ("otel", "opentelemetry", "from pyromq.client.tracing.otel import OpenTelemetryHook"),
    ("metrics", "prometheus_client", "from pyromq.client.tracing.prometheus import PrometheusHook"),
    ("codecs", "lz4", LZ4),
    ("codecs", "zstandard", ZSTANDARD),
    ("lake", "deltalake", "from pyromq.spark.archive.tables import DeltaTable; DeltaTable('/nowhere')"),
]


@pytest.mark.parametrize(("extra", "missing", "part"), PARTS)
def test_a_missing_package_is_named_with_the_command_that_installs_it(extra, missing, part, tmp_path, monkeypatch):
    java = tmp_path / "java" / "bin" / "java"  # Spark's commands ask for Java first
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    if isinstance(part, tuple):
        part = COMMAND.format((*part, str(tmp_path)) if part[-1] == "--data" else part)
    program = f"import sys; sys.modules[{missing!r}] = None; {part}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode
    said = done.stderr.splitlines()[-1]
    assert (install_command(extra) if extra != "codecs" else f"install {missing} to read it") in said


def test_every_extra_has_its_error_tested():
    assert set(metadata("pyromq").get_all("Provides-Extra")) == {extra for extra, _, _ in PARTS} | WITHOUT_CODE


def test_a_module_in_an_absent_package_is_not_installed():
    assert is_installed("json", "xml.dom")
    assert not is_installed("json", "absent")
    assert not is_installed("absent.part")
