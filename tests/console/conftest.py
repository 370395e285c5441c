"""A cluster in this process, and the console's application before it: a browser's requests without a browser."""

import asyncio
import re
import socket
from contextlib import asynccontextmanager
from functools import partial

import pytest

from pyromq.testing import Cluster

pytest.importorskip("starlette", reason="the console needs its extra: pip install 'pyromq[console]'")
httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")
PasswordHasher = pytest.importorskip("argon2").PasswordHasher

from pyromq.console.app import make_app  # noqa: E402  after the look whether its extra is there
from pyromq.console.console import Console  # noqa: E402
from pyromq.console.console_config import ConsoleConfig  # noqa: E402
from pyromq.console.console_server import ConsoleServer  # noqa: E402
from pyromq.console.security import console_accounts  # noqa: E402

PASSWORD = "correct horse"


class Browser:
    """Asks the console as a browser does: keeps cookies, follows redirects, sends the token of the page it is on."""

    def __init__(self, client, console, app):
        self.client = client
        self.console = console
        self.app = app
        self.form_at = "/new-topic"  # a page with a form

    async def get(self, url, status=200):
        answer = await self.client.get(url)
        assert answer.status_code == status, answer.text
        return answer.text

    async def post(self, url, status=200, **fields):
        """Send a form with the token of this session, as its pages have it."""
        page = (await self.client.get(self.form_at)).text
        token = re.search(r'name=csrf value="([^"]+)"', page)
        fields = {"csrf": token[1] if token else "", **fields}
        answer = await self.client.post(url, data=fields)
        assert answer.status_code == status, answer.text
        return answer.text

    async def sign_in(self, name, password=PASSWORD, status=200):
        answer = await self.client.post("/sign-in", data={"name": name, "password": password})
        assert answer.status_code == status, answer.text
        return answer.text


@asynccontextmanager
async def browsing(config, *, clock=None):
    console = Console(config, clock)
    app = make_app(console)
    async with console:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8876", follow_redirects=True
        ) as client:
            yield Browser(client, console, app)


@asynccontextmanager
async def served(console, **options):
    """A console in this process, on a port that browsers reach; gives its address."""
    server = ConsoleServer(console, **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            await running


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch):
    """Hash passwords by the least that argon2 allows: a tenth of a second each otherwise, for hundreds of them."""
    monkeypatch.setattr(
        console_accounts, "PasswordHasher", partial(PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
    )


@pytest.fixture
async def cluster():
    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
def config(cluster, tmp_path):
    """No snapshot outlives a request: a test sees what it did."""
    return ConsoleConfig(cluster.namesrv, tmp_path / "console", snapshot_seconds=0.001)


@pytest.fixture
async def browser(config):
    async with browsing(config) as browser:
        yield browser
