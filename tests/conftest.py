"""What holds for every test: Hypothesis, the seed of the day, patience, who runs beside whom, and what Ctrl-C means."""

import gc
import logging
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from tests.seed import VARIABLE, seed_of_the_day
from tests.waiting import REQUEST_SECONDS
from xdist.scheduler import LoadScopeScheduling

from pyromq.client.client_config import ConsumerConfig, ProducerConfig
from pyromq.client.cluster import cluster_client
from pyromq.net import channel

SLOW_SECONDS = 1.0  # of processor time: a busy machine makes no test slow
MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 6 << 30  # of memory for folders of tests, which need less than one: brokers refuse full disks

# An example may take as long as it takes: a busy machine is not a failure.
settings.register_profile("pyromq", parent=settings.default, deadline=None)
settings.load_profile("pyromq")

# A shell's background jobs begin with the signal ignored, and tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# In debug mode asyncio warns of a step above 0.1 s. A busy machine has such steps, and tests compare what was logged.
logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing "))


def _has_room_in_memory():
    try:
        found = os.statvfs(MEMORY)
        runs_programs = not found.f_flag & os.ST_NOEXEC  # tests write programs
    except (AttributeError, OSError):  # another system than Linux
        return False
    return runs_programs and os.access(MEMORY, os.W_OK) and found.f_bavail * found.f_frsize >= LEAST_FREE_BYTES


# Stores flush thousands of times: on a disk, workers wait for it half of the time. Tests of cold files are marked.
if _has_room_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _be_patient():
    """Give clients that are not told otherwise more time than the 3 seconds for which a loaded machine stands still.

    Test modules make configurations when they are imported, which is later.
    """
    for config in (ProducerConfig, ConsumerConfig):
        _, *others = config.__init__.__defaults__
        config.__init__.__defaults__ = (REQUEST_SECONDS, *others)
    channel.CONNECT_SECONDS = cluster_client.API_SECONDS = REQUEST_SECONDS
    cluster_client.ClusterClient.ask.__kwdefaults__["timeout"] = REQUEST_SECONDS


_be_patient()


def pytest_addoption(parser):
    parser.addoption(
        "--strict-slow",
        action="store_true",
        help="a test without the mark `slow` fails above a second of processor time",
    )


def pytest_configure(config):
    os.environ.setdefault("PYROMQ_GRPC_PORT", "0")  # servers of tests start no proxy unless told
    os.environ[VARIABLE] = str(seed_of_the_day())  # the same for all workers, also at midnight
    gc.disable()  # until the tests are collected: a quarter of the time, and no garbage
    if hasattr(config, "workerinput") and config.args_source is config.ArgsSource.TESTPATHS:
        config.args = _from_own_place(config)


def _from_own_place(config):
    """Return the folders of tests so that each worker begins with others: what one compiles, the others only load."""
    found = sorted(config.rootpath.glob("tests/[a-z]*"))
    folders = [str(path) for path in found if path.is_dir() or path.name.startswith("test_")]
    number, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    place = len(folders) * number // workers
    return folders[place:] + folders[:place]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Two more than processors: as a rule two of them wait, for Java, for a disk or for a process."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, so that workers end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (_folder_of_one_worker(item.nodeid) is None, item.path not in slow, item.path))


def pytest_collection_finish():
    gc.freeze()  # ten thousand tests live until the end: no collection need look at them
    gc.enable()


class ByFile(LoadScopeScheduling):
    """Tests of a file stay with one worker; so do all that share a Spark session, or a build of the Java programs."""

    def _split_scope(self, nodeid):
        return _folder_of_one_worker(nodeid) or nodeid.partition("::")[0]


def _folder_of_one_worker(nodeid):
    return next((folder for folder in ("tests/spark/", "tests/interop/") if nodeid.startswith(folder)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # by the number of their tests
    return ByFile(config, log)


@pytest.fixture
def tmp_path(request, tmp_path):
    """A folder of its own for each test, as a rule in memory; on a disk with the mark `on_disk`."""
    if request.node.get_closest_marker("on_disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="pyromq-") as folder:
        yield Path(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    started = time.process_time()
    result = yield
    used = time.process_time() - started
    allowed = any(item.get_closest_marker(mark) for mark in ("slow", "soak", "spark", "interop"))
    if item.config.getoption("--strict-slow") and used > SLOW_SECONDS and not allowed:
        pytest.fail(f"took {used:.1f} s of processor time: make it quicker, or mark it `slow`", pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"to have the same random schedules again: {VARIABLE}={os.environ[VARIABLE]}")
