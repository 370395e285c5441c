"""The port that Prometheus scrapes: /metrics, /healthz and /readyz over HTTP, GET and HEAD, a response per connection.

Size and time of a request, time of a response, and the number of connections are limited. A connection beyond the limit
replaces the oldest connection that has sent no request, or the oldest connection that reads its response.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Self, TypeVar

from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.message import join_address
from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.exposition import CONTENT_TYPE, Exposition, Family, MetricKind, Source
from pyromq.net.listening import listen_failure
from pyromq.net.tasks import Tasks
from pyromq.net.tls.transport import release_transport
from pyromq.platforms import platform
from pyromq.slow_work import SlowWork
from pyromq.store.disk import LOCAL_DISK

CPU = Family("process_cpu_seconds_total", MetricKind.COUNTER, "Processor time of this process.", unit="seconds")
MEMORY = Family("process_resident_memory_bytes", MetricKind.GAUGE, "Resident memory of this process.", unit="bytes")
DESCRIPTORS = Family("process_open_fds", MetricKind.GAUGE, "Open descriptors: connections and files.")
MAX_DESCRIPTORS = Family("process_max_fds", MetricKind.GAUGE, "Limit of open descriptors.")
STARTED = Family(
    "process_start_time_seconds", MetricKind.GAUGE, "Start time of this process, since 1970.", unit="seconds"
)

PROCESS_FAMILIES = (CPU, MEMORY, DESCRIPTORS, MAX_DESCRIPTORS, STARTED)

logger = logger_of(__name__)

T = TypeVar("T")

SLICE_SECONDS = 0.001  # limit of work between two turns of the event loop

SERIES = Family(
    "pyromq_metrics_series", MetricKind.GAUGE, "Series in this response, without the metrics of the scrape."
)
LIMIT = Family(
    "pyromq_metrics_series_limit",
    MetricKind.GAUGE,
    "Limit of the series in a response: the setting metricsSeriesLimit.",
)
LEFT_OUT = Family(
    "pyromq_metrics_series_left_out",
    MetricKind.GAUGE,
    "1 if a response leaves out series because of the limit, else 0.",
)
SECONDS = Family(
    "pyromq_metrics_scrape_seconds", MetricKind.GAUGE, "Time to collect the series of this response.", unit="seconds"
)

SCRAPE_FAMILIES = (SERIES, LIMIT, LEFT_OUT, SECONDS)

MAX_ANSWERED = 16  # limit of concurrent responses: some Prometheus servers and health checks
MAX_ASKING = 256  # limit of connections without a request; the event loop accepts fewer in one turn
HEAD_BYTES = 8 << 10
HEAD_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # limit of time for a response; the default timeout of Prometheus is 10 s
WRITTEN_AT_ONCE = 64 << 10

_PLAIN = "text/plain; charset=utf-8"
_PATHS = "/metrics\n/healthz\n/readyz\n"


class _Answer(NamedTuple):
    status: str
    chunks: Sequence[bytes]
    content_type: str = _PLAIN
    more: str = ""  # further header lines of the response


_Connections = dict[asyncio.StreamWriter, asyncio.Task[None]]  # the connections and their tasks, oldest first


class MetricsEndpoint:
    """Serves the metrics of some servers. An async context manager: inside, requests to `address` are answered.

        async with Broker(config) as broker, MetricsEndpoint([broker.metrics()], MetricsConfig(9557)):
            ...

    Entering raises `UsageError` naming the port and its owner when the port cannot be opened.
    """

    def __init__(self, sources: Sequence[Source], config: MetricsConfig | None = None) -> None:
        self.config = config or MetricsConfig()
        self.port = self.config.port
        self._scraping = Scraping(sources, self.config.series_limit)
        self._server: asyncio.Server | None = None
        self._asking: _Connections = {}
        self._answered: _Connections = {}
        self._tasks = Tasks()

    @property
    def address(self) -> str:
        """The address at which metrics are served, `host:port`."""
        return join_address(self.config.host, self.port)

    async def __aenter__(self) -> Self:
        host, port = self.config.host, self.config.port
        try:
            self._server = await asyncio.start_server(self._opened, host, port, limit=HEAD_BYTES)
        except (OSError, UnicodeError) as error:
            raise UsageError(f"metrics: {listen_failure(host, port, error)}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        await self._tasks.stop()

    def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _make_room(self._asking, MAX_ASKING)
        self._asking[writer] = self._tasks.start(self._serve(reader, writer), name="answer a scrape")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await _head(reader)
            _make_room(self._answered, MAX_ANSWERED)
            self._answered[writer] = self._asking.pop(writer)
            async with asyncio.timeout(ANSWER_SECONDS):
                await _write(writer, await self._answer(head), with_body=not head.startswith(b"HEAD "))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, EOFError):
            pass  # a slow or closed connection gets no response
        finally:
            self._asking.pop(writer, None)
            self._answered.pop(writer, None)
            writer.transport.abort()
            release_transport(writer.transport)

    async def _answer(self, head: bytes) -> _Answer:
        line = head.partition(b"\r\n")[0].split(b" ")
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            return _Answer("400 Bad Request", [b"write GET /metrics HTTP/1.1\n"])
        if line[0] not in (b"GET", b"HEAD"):
            return _Answer("405 Method Not Allowed", [b"only GET and HEAD\n"], more="Allow: GET, HEAD\r\n")
        match line[1].partition(b"?")[0]:
            case b"/metrics":
                return await self._metrics()
            case b"/healthz":
                return _Answer("200 OK", [b"ok\n"])
            case b"/readyz":
                return self._ready()
            case b"/":
                return _Answer("200 OK", [_PATHS.encode()])
        return _Answer("404 Not Found", [f"there are only\n{_PATHS}".encode()])

    async def _metrics(self) -> _Answer:
        try:
            return _Answer("200 OK", await self._scraping.text(), CONTENT_TYPE)
        except Exception:
            logger.exception("metrics cannot be collected")
            return _Answer("500 Internal Server Error", [b"the log of this server says why\n"])

    def _ready(self) -> _Answer:
        faults = self._scraping.faults()
        lines = [f"{name}: {fault or 'ok'}\n" for name, fault in faults.items()]
        status = "503 Service Unavailable" if any(faults.values()) else "200 OK"
        return _Answer(status, ["".join(lines).encode(errors="replace")])


def _make_room(connections: _Connections, most: int) -> None:
    """Close the oldest connection if there is no room for one more."""
    if len(connections) >= most:
        oldest = next(iter(connections))
        connections.pop(oldest).cancel()
        oldest.transport.abort()  # a cancelled task that has not begun does not close its connection


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""  # the caller responds with status 400


async def _write(writer: asyncio.StreamWriter, answer: _Answer, *, with_body: bool) -> None:
    size = sum(map(len, answer.chunks))
    writer.write(
        f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.content_type}\r\nContent-Length: {size}\r\n"
        f"X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n{answer.more}\r\n".encode()
    )
    for chunk in answer.chunks if with_body else ():
        for first in range(0, len(chunk), WRITTEN_AT_ONCE):
            writer.write(chunk[first : first + WRITTEN_AT_ONCE])
            await writer.drain()
            await asyncio.sleep(0)  # other tasks run even if the socket takes all bytes immediately


class Scraping:
    """Collects the metrics of several servers, for one scrape at a time."""

    def __init__(self, sources: Sequence[Source], series_limit: int) -> None:
        self._sources = (ProcessMetrics(), *sources)
        self._series_limit = series_limit
        self._one_at_a_time = asyncio.Lock()
        self._was_left_out = False

    def faults(self) -> dict[str, str]:
        """Return the fault of each condition of readiness by name; "" for a condition that is fulfilled."""
        return {name: fault for source in self._sources for name, fault in source.faults().items()}

    async def text(self) -> list[bytes]:
        """Return all metrics as text in the format of Prometheus, in chunks."""
        async with self._one_at_a_time:
            begun = time.monotonic()
            exposition = Exposition(self._series_limit)
            for source in self._sources:
                await in_slices(source.tell(exposition))
            chunks = await in_slices(exposition.text())
            self._tell_left_out(exposition)
            own = Exposition(len(SCRAPE_FAMILIES))
            own.add(SERIES, "", len(exposition))
            own.add(LIMIT, "", self._series_limit)
            own.add(LEFT_OUT, "", int(exposition.left_out))
            own.add(SECONDS, "", round(time.monotonic() - begun, 6))
            return chunks + await in_slices(own.text())

    def _tell_left_out(self, exposition: Exposition) -> None:
        if exposition.left_out and not self._was_left_out:
            logger.warning(
                "there are more series of metrics than metricsSeriesLimit=%d: those by queue are left out first, then "
                "the last; raise it, or delete unused topics and groups",
                self._series_limit,
            )
        self._was_left_out = exposition.left_out


async def in_slices(work: SlowWork[T]) -> T:
    """Run a coroutine of slow work in this event loop. Other tasks run after each slice, and threads load pages."""
    end = time.monotonic() + SLICE_SECONDS
    while True:
        try:
            awaited = work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        if awaited is not None:
            await asyncio.to_thread(LOCAL_DISK.load, awaited)
        elif time.monotonic() < end:
            continue
        else:
            await asyncio.sleep(0)
        end = time.monotonic() + SLICE_SECONDS


class ProcessMetrics:
    """The metrics of this process, for example its memory. Metrics that the system does not report are missing."""

    async def tell(self, exposition: Exposition) -> None:
        self._tell(exposition)

    def _tell(self, exposition: Exposition) -> None:
        exposition.add(CPU, "", time.process_time())
        exposition.add(MAX_DESCRIPTORS, "", platform.descriptor_limit())
        age = platform.process_age()
        told = {
            MEMORY: platform.resident_bytes(),
            DESCRIPTORS: platform.open_descriptors(),
            STARTED: None if age is None else round(time.time() - age, 2),
        }
        for family, value in told.items():
            if value is not None:
                exposition.add(family, "", value)

    def faults(self) -> dict[str, str]:
        return {}
