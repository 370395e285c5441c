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


def test_a_plain_test_gets_a_cluster_that_goes_on_while_blocking_clients_wait(pyromq_cluster):
    pyromq_cluster.admin().create_topic("orders", 1)
    producer, consumer = pyromq_cluster.producer(), pyromq_cluster.consumer()
    sent = producer.send(Message("orders", b"1"))
    assert [m.body for m in consumer.pull(sent.queue, sent.queue_offset).messages] == [b"1"]


@pytest.fixture
def sent(pyromq_cluster):
    return pyromq_cluster.producer().send(Message("orders", b"1"))


def test_fixtures_of_a_plain_test_share_its_cluster(sent, pyromq_cluster):
    assert pyromq_cluster.admin().view(sent.offset_message_id).body == b"1"


def test_the_plugin_loads_nothing_until_a_test_asks():
    program = "import sys, pyromq.testing.fixtures; print(*sorted(m for m in sys.modules if m.startswith('pyromq')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyromq", "pyromq.testing", "pyromq.testing.fixtures"]


def test_a_name_that_is_none_of_ours_is_refused():
    assert dir(pyromq.testing) == pyromq.testing.__all__
    with pytest.raises(AttributeError, match="no attribute 'Clustre'"):
        _ = pyromq.testing.Clustre


USERS_TESTS = """
import pytest
from pyromq import Message

{mark}
async def test_order(pyromq_cluster):
    producer = await pyromq_cluster.producer()
    assert (await producer.send(Message("orders", b"1"))).queue_offset == 0

def test_plain_order(pyromq_cluster):
    assert pyromq_cluster.producer().send(Message("orders", b"1")).queue_offset == 0

class TestOrders:
    {mark}
    async def test_order(self, pyromq_cluster):
        await pyromq_cluster.stop_broker()

    def test_plain_order(self, pyromq_cluster):
        pyromq_cluster.stop_broker()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "options"),
    [("@pytest.mark.asyncio", ()), ("", ("--asyncio-mode=auto",))],
)
def test_a_users_tests_find_the_fixture_by_themselves(tmp_path, mark, options):
    """Without any import of ours, with pytest-asyncio's mode set or not."""
    (tmp_path / "test_orders.py").write_text(USERS_TESTS.format(mark=mark))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
        *options,
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
