"""The file that option lagPrometheus names: the lag of one stream as Prometheus text. No Spark here."""

from __future__ import annotations

from pathlib import Path

from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.spark.monitoring.query_lag import StoreTimes, queue_lags, queue_text
from pyromq.spark.read.stream_offset import StreamOffset

logger = logger_of(__name__)

WRITE_SECONDS = 5.0  # shortest time between two writes of a lag file: each write requests store times from brokers


def replace_file(path: Path, content: str) -> None:
    """Replace a file atomically: readers see the old content or the new one. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(content, encoding="utf-8")
    draft.replace(path)


class LagFile:
    """Writes the lag of one stream as Prometheus text (option lagPrometheus).

    Label `query` is the name of the stream's group.
    """

    def __init__(self, path: Path, group: str, *, store_times: StoreTimes, clock: Clock) -> None:
        self._path = path
        self._group = group
        self._store_times = store_times
        self._clock = clock
        self._written_at: float | None = None

    def note(self, reached: StreamOffset, latest: StreamOffset | None, *, last: bool = False) -> None:
        """Write the lag between `reached` and `latest`, at most every 5 s. Errors are logged.

        The `last` call of a query's run always writes.
        """
        now = self._clock.monotonic()
        if latest is None or (not last and self._written_at is not None and now - self._written_at < WRITE_SECONDS):
            return
        self._written_at = now
        try:
            queues = queue_lags(reached, latest, self._clock.now_ms(), self._store_times)
            replace_file(self._path, queue_text({self._group: queues}))
        except (MQError, OSError) as error:
            logger.warning("the lag cannot be written to %s: %s", self._path, error)
