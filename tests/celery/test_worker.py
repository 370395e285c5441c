"""Real Celery workers with processes (prefork), killed in the middle of their work."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq.clock import SystemClock
from pyromq.testing import BlockingCluster

pytest.importorskip("celery")

pytestmark = pytest.mark.slow

TASKS = 60


@pytest.fixture(scope="module")
def app():
    """The application: one cluster for all tests."""
    with BlockingCluster(clock=SystemClock()) as cluster, pytest.MonkeyPatch.context() as patched:
        patched.setenv("BROKER", f"rocketmq://{cluster.namesrv}")
        patched.setenv("PYTHONPATH", f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}")
        from tests.celery.worker_app import app

        yield app
        app.backend.result_consumer.stop()  # the connection for results is not one of the pool's
        app.pool.force_close_all()
        app.close()
        assert [each.name for each in threading.enumerate() if each.name.startswith("pyromq celery")] == []


class Worker:
    """A worker, which leads a process group of its own: its pool's processes end with it."""

    def __init__(self, log):
        command = [sys.executable, "-m", "celery", "-A", "tests.celery.worker_app", "worker", "-c", "2", "-l", "info"]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        wait_until(lambda: " ready." in log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, log.read_text()

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start_worker(app, tmp_path):
    workers = []

    def start():
        workers.append(Worker(tmp_path / f"worker-{len(workers)}.log"))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def test_nothing_is_lost_when_a_worker_is_killed(app, start_worker, tmp_path):
    path = tmp_path / "done"
    note = app.tasks["tests.celery.worker_app.note"]
    worker = start_worker()
    for number in range(TASKS):
        note.delay(str(path), number)
    wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= TASKS // 4)
    worker.kill()
    start_worker()
    wait_until(lambda: set(path.read_text().split()) == {str(number) for number in range(TASKS)})


def test_results_chains_delays_and_remote_control(app, start_worker):
    from celery import chain

    start_worker()
    add = app.tasks["tests.celery.worker_app.add"]
    assert add.delay(2, 3).get(timeout=PATIENCE_SECONDS) == 5
    assert chain(add.s(1, 2), add.s(3)).delay().get(timeout=PATIENCE_SECONDS) == 6
    assert add.apply_async((1, 1), countdown=0.3).get(timeout=PATIENCE_SECONDS) == 2
    [reply] = app.control.ping(timeout=PATIENCE_SECONDS, limit=1)
    assert list(reply.values()) == [{"ok": "pong"}]


def test_a_queue_that_cannot_be_declared_is_refused_and_the_worker_lives(app, start_worker):
    start_worker()
    add = app.tasks["tests.celery.worker_app.add"]

    def ask(queue, **more):
        [reply] = app.control.add_consumer(queue, reply=True, timeout=PATIENCE_SECONDS, limit=1, **more)
        return next(iter(reply.values()))

    assert "a topic of group celery has at most 113 characters" in ask("q" * 120)["error"]
    assert "is a string that is not empty" in ask("")["error"]
    assert "is a string that is not empty" in ask(5)["error"]
    told = ask("photos", exchange="pictures", exchange_type="nonsense")["error"]
    assert told == "queue 'photos' is not added: exchange type 'nonsense' is unknown; use direct, fanout, topic"
    assert add.delay(2, 3).get(timeout=PATIENCE_SECONDS) == 5
    assert ask("photos") == {"ok": "add consumer photos"}
    assert ask("photos") == {"ok": "add consumer photos"}
    assert add.apply_async((1, 2), queue="photos").get(timeout=PATIENCE_SECONDS) == 3
