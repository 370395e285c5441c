"""A file that holds how far behind a stream is, as Prometheus text: the source's option lagPrometheus.

No Spark here: the driver's reader calls it whenever it plans.
"""

from __future__ import annotations

from pathlib import Path

from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.spark.monitoring.lag import StoreTimes, queue_lags, queue_text, replace_text
from pyromq.spark.read.stream_offset import StreamOffset

logger = logger_of(__name__)

SECONDS = 5.0  # between two writes: each requests store times from the brokers


class LagFile:
    """Writes the lag of one stream as Prometheus text, under the name of its group: option lagPrometheus."""

    def __init__(self, path: Path, group: str, *, store_times: StoreTimes, clock: Clock) -> None:
        self._path = path
        self._group = group
        self._store_times = store_times
        self._clock = clock
        self._written_at: float | None = None

    def note(self, reached: StreamOffset, latest: StreamOffset | None, *, last: bool = False) -> None:
        """Write the lag behind `latest`, at most every 5 s and at the `last` call of a run. Errors are logged."""
        now = self._clock.monotonic()
        if latest is None or (not last and self._written_at is not None and now - self._written_at < SECONDS):
            return
        self._written_at = now
        try:
            queues = queue_lags(reached, latest, self._clock.now_ms(), self._store_times)
            replace_text(self._path, queue_text({self._group: queues}))
        except (MQError, OSError) as error:
            logger.warning("the lag cannot be written to %s: %s", self._path, error)
