"""A query listener that reports the lag after each micro-batch to the log, a JSON file or a Prometheus file.

spark.streams.addListener(LagListener(namesrv="127.0.0.1:9876", prometheus=Path("lag.prom")))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from pyromq.client.blocking.consumers import QueueReader
from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.extras import packages_of
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.spark.monitoring.lag_file import replace_file
from pyromq.spark.monitoring.query_lag import QueryLag, lag_of, prometheus_text
from pyromq.spark.options import BY_ENVIRONMENT, ConnectionOptions
from pyromq.spark.worker_clients import queue_reader

with packages_of("spark", "LagListener"):
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

logger = logger_of(__name__)

GROUP = "pyromq-spark-lag"
TIMEOUT_SECONDS = 2.0


class LagListener(StreamingQueryListener):
    """Records the lag of every streaming query of a Spark session in `lags`.

    With `namesrv`, the ages of unread messages are requested from brokers.
    """

    def __init__(
        self,
        *,
        namesrv: str | None = None,
        json_file: Path | None = None,
        prometheus: Path | None = None,
        tell: Callable[[QueryLag], None] | None = None,
        connecting: ConnectionOptions = BY_ENVIRONMENT,
    ) -> None:
        self.lags: dict[str, QueryLag] = {}
        self._namesrv = namesrv
        self._json_file = json_file
        self._prometheus = prometheus
        self._tell = tell
        self._connecting = connecting
        self._reader: QueueReader | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the last lag is kept."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.note(event.progress.json)

    def note(self, progress: str) -> None:
        """Record the lag from Spark's progress report (JSON) of a micro-batch, log it, write the files and call `tell`.

        Raises `OSError` if a file cannot be written.
        """
        lag = lag_of(
            json.loads(progress),
            now_ms=SystemClock().now_ms(),
            store_times=self._store_times if self._namesrv else None,
        )
        self.lags[lag.query] = lag
        logger.info("%s", lag.line())
        self._write()
        if self._tell is not None:
            self._tell(lag)

    def close(self) -> None:
        """Close the connections to name servers and brokers. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        try:
            if self._reader is None:
                reader = queue_reader(GROUP, self._namesrv or "", self._connecting, timeout=TIMEOUT_SECONDS)
                reader.start()
                self._reader = reader
            return self._reader.store_times(places)
        except MQError as error:
            logger.warning("the age of unread messages is not known: %s", error)
            return {}

    def _write(self) -> None:
        lags = list(self.lags.values())
        if self._json_file is not None:
            replace_file(self._json_file, "[" + ",".join(lag.as_json() for lag in lags) + "]\n")
        if self._prometheus is not None:
            replace_file(self._prometheus, prometheus_text(lags))
