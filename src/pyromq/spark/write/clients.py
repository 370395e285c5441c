"""Sending clients of this process, one for each way of sending, kept between tasks: Spark's workers live on."""

from __future__ import annotations

import atexit
import os

from pyromq.client.blocking.batch_transactions import BatchTransactions
from pyromq.client.config import ProducerConfig
from pyromq.spark.connection_options import Connecting
from pyromq.spark.worker_memory import keep_memory
from pyromq.spark.write.options import SinkOptions

_Key = tuple[int, str, str, str | None, int, int, Connecting]

# A client is here by the ledger it was asked for, and by the one it has found: driver and tasks share it.
_clients: dict[_Key, BatchTransactions] = {}


def sink_client(options: SinkOptions, ledger: str | None = None) -> BatchTransactions:
    """Return this process's client; Spark forks its workers, so a client of the parent is of no use to the child.

    Raises `NoNameServer` at once when no name server can be reached, `UsageError` for a ledger that is not there.
    """
    wanted = ledger or options.ledger
    if (found := _clients.get(_key(options, wanted))) is not None:
        return found
    client = BatchTransactions(
        options.group,
        options.namesrv,
        ledger=wanted,
        timeout=options.deadline_ms / 1000,
        in_flight=options.in_flight,
        config=ProducerConfig(connections=options.connecting.connections(), namespace=options.connecting.namespace),
    )
    client.start()
    keep_memory()  # not `speedups.keep_memory`, which is for batches of 1 MiB: those of Arrow are larger
    _clients[_key(options, wanted)] = _clients[_key(options, client.ledger)] = client
    return client


def _key(options: SinkOptions, ledger: str | None) -> _Key:
    process = os.getpid()
    sending = options.deadline_ms, options.in_flight
    return process, options.namesrv, options.group, ledger, *sending, options.connecting


@atexit.register
def _close_clients() -> None:
    for (pid, *_), client in _clients.items():
        if pid == os.getpid():
            client.close()
