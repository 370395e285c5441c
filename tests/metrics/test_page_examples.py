"""docs/metrics.md: its examples are run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SERVER, CLIENT = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_the_example_of_a_server_runs():
    assert re.fullmatch(r"http://127.0.0.1:\d+/metrics\n", run(SERVER))


@pytest.fixture
def namesrv():
    from pyromq.testing import BlockingCluster

    with BlockingCluster() as cluster:
        yield cluster.namesrv


def test_the_example_of_a_client_runs(namesrv):
    pytest.importorskip("prometheus_client")
    told = run(CLIENT.replace("127.0.0.1:9876", namesrv))

    assert 'pyromq_sent_messages_total{invocation_status="success",producer_group="shop",topic="orders"} 1.0' in told
