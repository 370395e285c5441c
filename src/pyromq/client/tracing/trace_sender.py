"""Sends trace records beside the work: what does not fit is dropped and counted, and nobody waits for it."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from dataclasses import replace

from pyromq.client.blocking.producer import Producer
from pyromq.client.config import ProducerConfig
from pyromq.client.tracing.trace_records import TraceRecord, keys_of, write_record
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.message import Message
from pyromq.net.connection_config import ConnectionConfig

logger = logger_of(__name__)

MOST_WAITING = 1024 * 16  # records; a message of the trace topic holds some hundred
SEND_SECONDS = 0.5  # how long the first record waits for others. Source: AsyncTraceDispatcher, as the next
MOST_CHARACTERS = 118_000  # of records in a message
MOST_KEY_CHARACTERS = 24_000  # of its keys: all properties together have 32 KiB
CLOSE_SECONDS = 3.0


class TraceSender:
    """Sends records to the trace topic, from a thread of its own that the first record starts."""

    def __init__(self, namesrv: str | None, topic: str, connections: ConnectionConfig | None) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._connections = connections
        self._waiting: deque[TraceRecord] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def add(self, record: TraceRecord) -> None:
        """Take a record, or drop it when too many wait. Any thread; never waits."""
        if len(self._waiting) >= MOST_WAITING or self._closing:
            self._count_dropped(1)
            return
        self._waiting.append(record)
        if self._thread is None:
            self._start(record)

    def connect_as(self, connections: ConnectionConfig) -> None:
        """Connect with these TLS settings and this account, unless there are some already."""
        if self._connections is None:
            self._connections = replace(connections, hooks=())  # the client's hooks watch its own calls

    def close(self) -> None:
        """Send what waits, for at most three seconds. Idempotent."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _start(self, record: TraceRecord) -> None:
        with self._lock:
            if self._thread is not None or self._closing:
                return
            group = f"_INNER_TRACE_PRODUCER-{record.group}-{'CONSUME' if record.name.startswith('Sub') else 'PRODUCE'}"
            self._thread = threading.Thread(target=self._run, args=(group[:255],), name="pyromq trace", daemon=True)
            self._thread.start()
        atexit.register(_close_one, weakref.ref(self))

    def _run(self, group: str) -> None:
        config = ProducerConfig(timeout=5.0, connections=self._connections, namespace="", max_in_flight=64)
        while True:
            try:
                with Producer(group, self._namesrv, config=config) as producer:
                    self._send_all(producer)
                return
            except MQError as error:
                logger.warning("traces wait: %s", error)
                if self._closing or self._wake.wait(SEND_SECONDS * 10):
                    self._count_dropped(len(self._waiting))
                    return

    def _send_all(self, producer: Producer) -> None:
        while not self._closing:
            self._wake.wait(SEND_SECONDS)
            self._send_waiting(producer)
        self._send_waiting(producer)

    def _send_waiting(self, producer: Producer) -> None:
        while self._waiting:
            records, keys, body = 0, dict[str, None](), ""
            while self._waiting and len(body) < MOST_CHARACTERS and sum(map(len, keys)) < MOST_KEY_CHARACTERS:
                record = self._waiting.popleft()
                records += 1
                keys |= dict.fromkeys(keys_of(record))
                body += write_record(record)
            try:
                producer.send(Message(self._topic, body.encode(), keys=list(keys)))
            except MQError as error:
                self._count_dropped(records)
                logger.warning("%d trace records are dropped, %d so far: %s", records, self.dropped, error)
                return

    def _count_dropped(self, count: int) -> None:
        with self._lock:
            self.dropped += count


def _close_one(sender: weakref.ref[TraceSender]) -> None:
    alive = sender()
    if alive is not None:
        alive.close()
