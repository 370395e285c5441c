"""Keeps the clients of a Spark process between tasks, and retries calls of these clients."""

from __future__ import annotations

import atexit
import gc
import math
import os
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import IllegalName, MQError, TopicNotFound, UsageError
from pyromq.logs import logger_of
from pyromq.spark.options import ConnectionOptions
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.write.sink_options import SinkOptions

logger = logger_of(__name__)

T = TypeVar("T")

LARGE_BYTES = 24 << 20  # size of the block that `keep_memory` frees: larger than any Arrow batch
REQUEST_SECONDS = 5.0  # timeout of one request
RETRY_SECONDS = 0.2  # pause between two attempts of a call
RESTART_SECONDS = 20.0  # longest time after which restarted servers know their topics and brokers again

_clients: dict[tuple[int, Hashable], Any] = {}


def kept_client(key: Hashable, open_client: Callable[[], T]) -> T:
    """Return the client of this process for `key`. The first call opens the client; the end of the process closes it.

    Spark forks its workers, which run many tasks. A client of the parent process does not work in a child process.
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
    """Return a new `QueueReader` with these connection options; the reader is not started."""
    connections, namespace = connecting.connections(), connecting.namespace
    return QueueReader(group, namesrv, timeout=timeout, connections=connections, namespace=namespace)


def with_retries(
    options: ReadOptions | SinkOptions, call: Callable[[], T], *, max_seconds: float = math.inf, planned: bool = False
) -> T:
    """Return the result of `call`, which is called again after a retriable error.

    Calls end after `deadlineMs`, at most `max_seconds`; then the last error is raised. With `planned`, topics and
    brokers existed at planning. A name server that does not know them was restarted, so this error is retried for up to
    20 s, until brokers have registered again.
    """
    began = time.monotonic()
    give_up = began + min(options.deadline_ms / 1000, max_seconds)
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

    Spark's workers collect garbage after each task; `gc.freeze` excludes the present objects, which saves 20 ms. After
    a large block is freed, glibc keeps freed blocks up to that size instead of returning them to the kernel. This saves
    a quarter of the cost of reading. `speedups.keep_memory` does the same for batches of 1 MiB; Arrow's are larger.
    Without glibc this has no effect.
    """
    gc.freeze()
    bytes(LARGE_BYTES)
