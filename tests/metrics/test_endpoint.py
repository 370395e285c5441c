"""The port for metrics: what it answers, and what strangers cannot make it do."""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest
from tests.net.gone_connections import nothing_is_left
from tests.platforms.marks import only_linux

from pyromq.errors import UsageError
from pyromq.metrics import endpoint as endpoints
from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.endpoint import MetricsEndpoint
from pyromq.metrics.exposition import CONTENT_TYPE, Family, MetricKind
from pyromq.slow_work import yield_slice

from .scrape import ask, get, samples

COUNT = Family("count", MetricKind.GAUGE, "Something.", ("n",))


class Source:
    """Tells as many samples as it is asked to, and its faults."""

    def __init__(self, many=1, faults=None, failure=None):
        self.many, self.told, self.failure = many, faults or {"store": ""}, failure

    async def tell(self, exposition):
        if self.failure:
            raise self.failure
        for number in range(self.many):
            exposition.add(COUNT, f'n="{number}"', number)
            await yield_slice()

    def faults(self):
        return self.told


@pytest.fixture
async def serving():
    """Serve sources; `await serving(source, series_limit=...)`."""
    async with AsyncExitStack() as stack:

        async def enter(*sources, **settings):
            return await stack.enter_async_context(MetricsEndpoint(sources, MetricsConfig(**settings)))

        yield enter


@only_linux
async def test_figures_of_all_sources_and_of_the_process_are_told(serving):
    source = Source(many=3)
    answer = await get(await serving(source), "/metrics?x=1")
    found = samples(answer.body)

    assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert int(answer.headers["Content-Length"]) == len(answer.body.encode())
    assert found['count{n="2"}'] == 2
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert found["pyromq_metrics_series"] == 3 + 5  # of the process
    assert found["pyromq_metrics_series_left_out"] == 0


async def test_a_limit_of_series_is_kept_and_told_once(serving, caplog):
    endpoint = await serving(Source(many=200), series_limit=100)
    with caplog.at_level(logging.WARNING):
        found = [samples((await get(endpoint, "/metrics")).body) for _ in range(2)][-1]

    assert (found["pyromq_metrics_series"], found["pyromq_metrics_series_left_out"]) == (100, 1)
    assert len(found) == 100 + 4
    assert [record.getMessage() for record in caplog.records if "metricsSeriesLimit=100" in record.getMessage()] != []
    assert len(caplog.records) == 1


async def test_it_is_healthy_and_ready_as_its_sources_are(serving):
    healthy, faulty = Source(), Source(faults={"store": "", "name servers": "none knows this broker"})
    ready, waiting = await serving(healthy), await serving(faulty)

    assert await _told(ready, "/healthz") == (200, "ok\n")
    assert await _told(ready, "/readyz") == (200, "store: ok\n")
    assert await _told(waiting, "/healthz") == (200, "ok\n")
    assert await _told(waiting, "/readyz") == (503, "store: ok\nname servers: none knows this broker\n")


async def _told(endpoint, path):
    answer = await get(endpoint, path)
    return answer.status, answer.body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 200),
        (b"GET /else HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 5_000, None),  # too long, and unread when it is refused
        (b"GET /metr", "silent"),
    ],
)
async def test_strangers_are_refused(serving, monkeypatch, request_bytes, status):
    monkeypatch.setattr(endpoints, "HEAD_SECONDS", 0.05 if status == "silent" else 30)
    endpoint = await serving(Source())
    answer = await ask(endpoint, request_bytes)

    if isinstance(status, int):
        assert answer.status == status
    else:
        assert answer is None or answer.status == 400
    assert (await get(endpoint, "/healthz")).status == 200


async def test_head_is_answered_without_a_body(serving):
    answer = await ask(await serving(Source()), b"HEAD /metrics HTTP/1.1\r\n\r\n")

    assert (answer.status, answer.body) == (200, "")
    assert int(answer.headers["Content-Length"]) > 100


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"], ids=repr
)
async def test_the_oldest_connections_make_room_for_new_ones(serving, monkeypatch, sent):
    """Silent ones, such as never end their request, and such as do not read the answer."""
    monkeypatch.setattr(endpoints, "MAX_ASKING", 16)
    endpoint = await serving(Source(many=20_000))
    opened = []
    try:
        for _ in range(19):
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port, limit=1)
            opened.append((reader, writer))
            writer.transport.pause_reading()
            writer.write(sent)
            assert await _told(endpoint, "/healthz") == (200, "ok\n")
            assert max(len(endpoint._asking), len(endpoint._answered)) <= 16
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def test_who_has_asked_stays_while_others_are_silent(serving):
    endpoint = await serving(Source(many=20_000))
    asked = asyncio.create_task(get(endpoint, "/metrics"))
    opened = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(endpoints.MAX_ASKING + 20)]
    assert (await asked).status == 200
    for _, writer in opened:
        writer.transport.abort()


async def test_a_source_that_fails_is_logged_and_the_next_scrape_is_answered(serving, caplog):
    source = Source(failure=ValueError("odd"))
    endpoint = await serving(source)

    assert (await get(endpoint, "/metrics")).status == 500
    assert "metrics cannot be collected" in caplog.text
    source.failure = None
    assert (await get(endpoint, "/metrics")).status == 200


@only_linux
async def test_long_answers_come_whole_also_to_several_at_once(serving):
    endpoint = await serving(Source(many=20_000))
    answers = await asyncio.gather(*(get(endpoint, "/metrics") for _ in range(3)))

    assert {len(samples(answer.body)) for answer in answers} == {20_000 + 5 + 4}


async def test_a_port_in_use_is_named(serving):
    endpoint = await serving(Source())

    with pytest.raises(UsageError, match=rf"metrics: port {endpoint.port} at 127.0.0.1 is in use"):
        await serving(Source(), port=endpoint.port)


@pytest.mark.parametrize("settings", [{"port": 70_000}, {"series_limit": 0}])
def test_settings_are_checked(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        MetricsConfig(**settings)


@pytest.mark.parametrize("sent", [b"GET /metrics HTTP/1.1\r\n\r\n", b"nothing known\r\n\r\n", b"GET /met", b""])
async def test_a_connection_that_is_gone_leaves_nothing_for_the_collector(serving, sent):
    endpoint = await serving(Source())
    await nothing_is_left(("127.0.0.1", endpoint.port), sent)
