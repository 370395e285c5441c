"""Clients that a process of Spark keeps between tasks, and retries of their calls."""

from __future__ import annotations

import atexit
import gc
import math
import os
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import IllegalName, MQError, TopicNotFound, UsageError
from pyromq.logs import logger_of
from pyromq.spark.options import ConnectionOptions

logger = logger_of(__name__)

T = TypeVar("T")

LARGE_BYTES = 24 << 20  # above the size of Arrow batches
REQUEST_SECONDS = 5.0  # timeout of one request
RETRY_SECONDS = 0.2  # between two calls
RESTART_SECONDS = 20.0  # longest time after which restarted servers know their topics and brokers again

_clients: dict[tuple[int, Hashable], Any] = {}


def kept_client(key: Hashable, open_client: Callable[[], T]) -> T:
    """Return this process's client for `key`; the first call opens it, the end of the process closes it.

    Spark forks its workers, which live for many tasks. A client of the parent process does not work in its child.
    """
    place = os.getpid(), key
    if place not in _clients:
        _clients[place] = open_client()
        keep_memory()
    found: T = _clients[place]
    return found


def queue_reader(
    group: str, namesrv: str, connecting: ConnectionOptions, *, timeout: float = REQUEST_SECONDS
) -> QueueReader:
    """Return a reader with these connection options, not started."""
    connections, namespace = connecting.connections(), connecting.namespace
    return QueueReader(group, namesrv, timeout=timeout, connections=connections, namespace=namespace)


class RetryDeadline(Protocol):
    """Options with a deadline for retries."""

    @property
    def deadline_ms(self) -> int: ...


def with_retries(
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
    own = {id(client): client for (pid, _), client in _clients.items() if pid == os.getpid()}
    for client in own.values():
        client.close()


def keep_memory() -> None:
    """Prepare the memory of this process for many short tasks.

    Spark's workers collect garbage after each task; `freeze` excludes the present objects, which saves 20 ms. Freeing a
    large block makes glibc keep blocks up to its size instead of returning them to the kernel: a quarter of the cost
    of reading. `speedups.keep_memory` is for batches of 1 MiB, and Arrow's are larger. No effect elsewhere.
    """
    gc.freeze()
    bytes(LARGE_BYTES)
