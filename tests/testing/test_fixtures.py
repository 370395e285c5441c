"""The pytest plugin: a user's test gets a cluster by naming it, and pays nothing when it does not."""

import subprocess
import sys

import pytest

import pyromq.testing
from pyromq.message import Message


async def test_the_fixture_is_a_running_cluster(pyromq_cluster):
    producer = await pyromq_cluster.producer()
    sent = await producer.send(Message("orders", b"1"))
    assert sent.queue.broker_name == "broker-a"


def test_the_plugin_loads_nothing_until_a_test_asks():
    program = "import sys, pyromq.testing.fixtures; print(*sorted(m for m in sys.modules if m.startswith('pyromq')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyromq", "pyromq.testing", "pyromq.testing.fixtures"]


def test_a_name_that_is_none_of_ours_is_refused():
    assert set(pyromq.testing.__all__) <= set(dir(pyromq.testing))
    with pytest.raises(AttributeError, match="no attribute 'Clustre'"):
        _ = pyromq.testing.Clustre


@pytest.mark.slow
def test_a_users_test_finds_the_fixture_by_itself(tmp_path):
    """Without pytest-asyncio's mode set and without any import of ours."""
    (tmp_path / "test_orders.py").write_text(
        "import pytest\n"
        "@pytest.mark.asyncio\n"
        "async def test_order(pyromq_cluster):\n"
        "    assert pyromq_cluster.broker.config.name == 'broker-a'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
