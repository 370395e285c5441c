"""Clients of this process, one for each name server list and group, kept between tasks: Spark's workers live on."""

from __future__ import annotations

import atexit
import math
import os
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from pyromq.client.blocking.queue_reader import QueueReader
from pyromq.errors import IllegalName, MQError, TopicNotFound, UsageError
from pyromq.logs import logger_of
from pyromq.spark.connection_options import ConnectionOptions
from pyromq.spark.read.options import ReadOptions
from pyromq.spark.worker_memory import keep_memory

logger = logger_of(__name__)

T = TypeVar("T")

RETRY_SECONDS = 0.2
RESTART_SECONDS = 20.0  # longest time after which restarted servers know their topics and brokers again

_clients: dict[tuple[int, str, str, int, ConnectionOptions], QueueReader] = {}


def client_of(options: ReadOptions) -> QueueReader:
    """Return this process's client for these options. Raises `NoNameServer` at once if no name server is reachable."""
    key = os.getpid(), options.namesrv, options.group, options.pull_timeout_ms, options.connecting
    if key not in _clients:
        keep_memory()
        client = QueueReader(
            options.group,
            options.namesrv,
            timeout=options.pull_timeout_ms / 1000,
            connections=options.connecting.connections(),
            namespace=options.connecting.namespace,
        )
        client.start()
        _clients[key] = client
    return _clients[key]


class RetryDeadline(Protocol):
    """Options with a deadline for retries."""

    @property
    def deadline_ms(self) -> int: ...


def patiently(
    options: RetryDeadline, call: Callable[[], T], *, most_seconds: float = math.inf, planned: bool = False
) -> T:
    """Return the result of `call`, repeated on retriable errors until `deadlineMs`; then its error is raised.

    With `planned`, topics and brokers existed at planning. If a name server does not know them it was restarted, so
    that error is retried for up to 20 s: brokers register again.
    """
    began = time.monotonic()
    give_up = began + min(options.deadline_ms / 1000, most_seconds)
    registered_by = min(give_up, began + RESTART_SECONDS) if planned else began
    is_logged = False
    while True:
        try:
            return call()
        except MQError as error:
            unknown = isinstance(error, TopicNotFound | UsageError) and not isinstance(error, IllegalName)
            until = registered_by if unknown else give_up
            if time.monotonic() >= until or not (error.retriable or unknown):
                raise
            if not is_logged:
                is_logged = True
                logger.warning("%s; trying again for up to %.0f s", error, until - time.monotonic())
        time.sleep(RETRY_SECONDS)


@atexit.register
def _close_clients() -> None:
    for (pid, *_), client in _clients.items():
        if pid == os.getpid():
            client.close()
