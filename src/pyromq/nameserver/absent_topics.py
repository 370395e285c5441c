"""Topics of brokers that left: a client that needs a whole topic must know that a part of it is missing. Ours.

No clock: times are passed in, in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyromq.logs import logger_of

logger = logger_of(__name__)

KEEP_SECONDS = 86_400.0  # a daily job must notice a broker that left since its last run
MOST_NAMES = 100_000  # topics, each counted at each broker: some 10 MB
MOST_BROKERS = 100


@dataclass(slots=True)
class _Absence:
    cluster: str
    heard: float
    topics: set[str]


class AbsentTopics:
    """The topics of each broker that left and has not registered again, for a day. The oldest are dropped first."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Absence] = {}

    def note(self, broker_name: str, cluster: str, topics: Iterable[str], *, heard: float) -> None:
        """Store the topics of a broker that left; `heard` is the time of its last sign of life."""
        self._brokers.pop(broker_name, None)
        self._brokers[broker_name] = _Absence(cluster, heard, set(topics))
        while len(self._brokers) > MOST_BROKERS or self._count() > MOST_NAMES:
            oldest = next(iter(self._brokers))
            del self._brokers[oldest]
            logger.warning("the topics of absent broker %s are forgotten; the limit is %d", oldest, MOST_NAMES)

    def returned(self, broker_name: str) -> None:
        """Forget a broker that has registered again."""
        self._brokers.pop(broker_name, None)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget a topic, everywhere or at the brokers of one cluster."""
        for absence in self._brokers.values():
            if cluster is None or absence.cluster == cluster:
                absence.topics.discard(topic)

    def expire(self, oldest: float) -> None:
        """Forget the brokers last heard before `oldest`."""
        self._brokers = {name: absence for name, absence in self._brokers.items() if absence.heard >= oldest}

    def by_broker(self) -> dict[str, list[str]] | None:
        """Return the topics of each absent broker; None if there is none."""
        return {name: list(absence.topics) for name, absence in self._brokers.items() if absence.topics} or None

    def _count(self) -> int:
        return sum(len(absence.topics) for absence in self._brokers.values())
