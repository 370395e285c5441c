"""What holds for every test: Hypothesis, the seed of the day, who runs beside whom, and that Ctrl-C means something."""

import os
import signal
import time

import pytest
from hypothesis import settings
from tests.seed import VARIABLE, seed_of_the_day
from xdist.scheduler import LoadScopeScheduling

SLOW_SECONDS = 1.0  # of processor time: a busy machine makes no test slow

# An example may take as long as it takes: a busy machine is not a failure.
settings.register_profile("pyromq", parent=settings.default, deadline=None)
settings.load_profile("pyromq")

# A shell's background jobs begin with the signal ignored, and tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--strict-slow",
        action="store_true",
        help="a test without the mark `slow` fails above a second of processor time",
    )


def pytest_configure(config):
    os.environ[VARIABLE] = str(seed_of_the_day())  # the same for all workers, also at midnight


class ByFile(LoadScopeScheduling):
    """Tests of a file stay with one worker; so do all that share a Spark session, or a build of the Java programs."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return next((folder for folder in ("tests/spark/", "tests/interop/") if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


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
