"""docs/how-to/web-frameworks.md: its programs are served as their users serve them, and consumed from."""

import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.processes import Program, free_port
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq import ConsumeFrom, ConsumerConfig
from pyromq.clock import SystemClock
from pyromq.testing import BlockingCluster

httpx = pytest.importorskip("httpx")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "web-frameworks.md"
FASTAPI, VIEWS, COMMAND = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SETTINGS = """
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
"""
URLS = """
from django.urls import path

from shop import views

urlpatterns = [path("orders/<int:number>", views.place)]
"""
WSGI = """
from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
"""

pytestmark = pytest.mark.slow  # servers in processes of their own


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster, in whose programs a warning is an error; files go to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    with BlockingCluster(clock=SystemClock()) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("PYTHONWARNINGS", "error")
        monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
        yield cluster


@contextmanager
def running(ready, *arguments):
    program = Program([sys.executable, "-u", "-m", *arguments], ready, os.environ)
    try:
        program.wait_until_ready()
        yield program
    finally:
        program.stop()
    assert "Traceback" not in "".join(program.output)


def consumed(cluster):
    """Return a list that a consumer fills with the orders that arrive."""
    arrived = []
    consumer = cluster.push_consumer("audit", config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    consumer.subscribe("orders", arrived.extend)
    return arrived


def post(port, number):
    return httpx.post(f"http://127.0.0.1:{port}/orders/{number}", timeout=PATIENCE_SECONDS)


def test_fastapi_sends_what_it_is_asked_to_and_says_when_it_cannot(cluster):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    Path("shop.py").write_text(FASTAPI)
    port = free_port()
    arrived = consumed(cluster)
    with running("Uvicorn running on", "uvicorn", "shop:app", "--port", str(port)) as program:
        answer = post(port, 7)
        assert answer.status_code == 200, answer.text
        wait_until(lambda: arrived)
        cluster.stop_broker()
        assert post(port, 8).status_code == 503
        cluster.start_broker()  # its consumer is closed more quickly
    message = arrived[0]
    assert (message.json(), message.keys) == ({"id": 7}, ["7"])
    assert answer.json() == {"message": message.message_id}
    assert "Application shutdown complete" in "".join(program.output)


def test_django_sends_from_each_forked_worker_and_a_command_consumes(cluster):
    pytest.importorskip("django")
    pytest.importorskip("gunicorn")
    files = {"settings": SETTINGS, "urls": URLS, "wsgi": WSGI, "shop/views": VIEWS}
    files |= {"shop/management/commands/bill": COMMAND}
    for name, text in files.items():
        file = Path(f"{name}.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    port = free_port()
    server = ("gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}", "wsgi:application")
    arrived = consumed(cluster)
    with running("Booting worker", *server) as gunicorn:
        sent = 0
        while len({message.born_host for message in arrived}) < 2:  # which worker answers is the kernel's choice
            answer = post(port, sent)
            assert (answer.status_code, answer.json()) == (200, {"id": sent})
            sent += 1
            wait_until(lambda: len(arrived) >= sent)  # noqa: B023
    assert gunicorn.process.returncode == 0
    assert len({message.message_id for message in arrived}) == sent
    expected = set(map(str, range(sent)))
    with running("billed", "django", "bill") as command:
        # Listeners print side by side: one's line may end after another's.
        wait_until(lambda: expected <= set(re.findall(r"billed (\d+)", "".join(command.output))))
    assert command.process.returncode == 0
