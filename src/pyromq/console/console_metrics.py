"""The console's metrics for Prometheus.

Label `page` is the path of a route, so that invented addresses make no series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from pyromq.console.cluster.cluster_history import ClusterHistory
from pyromq.metrics.exposition import Exposition, Family, Histogram, MetricKind, add_info, label_text
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.slow_work import yield_slice

REQUESTS = Family(
    "pyromq_console_requests_total",
    MetricKind.COUNTER,
    "Requests of browsers, by page and status; 499: the browser did not wait for the answer.",
    ("page", "status"),
)
SECONDS = Family(
    "pyromq_console_request_seconds",
    MetricKind.HISTOGRAM,
    "Time until a response began, by page.",
    ("page",),
    unit="seconds",
)
REFUSED = Family(
    "pyromq_console_sign_ins_refused_total", MetricKind.COUNTER, "Sign-ins that were refused.", ("reason",)
)
CUT = Family(
    "pyromq_console_requests_refused_total",
    MetricKind.COUNTER,
    "Requests that failed or could not be read, and connections that were closed, by reason.",
    ("reason",),
)
SEARCHES = Family("pyromq_console_searches_running", MetricKind.GAUGE, "Searches that read messages now.")

FAMILIES = (REQUESTS, SECONDS, REFUSED, CUT, SEARCHES)

NO_PAGE = "none"  # value of label `page` for an unknown address


class SignInRefusal(Enum):
    WRONG = "wrong name or password"
    TOO_MANY = "too many tries"


class ConsoleMetrics:
    """The Prometheus metrics of one console. The console is ready while the cluster responds."""

    def __init__(self, history: ClusterHistory, refusals: RejectionLog) -> None:
        self._common = label_text(node_type="console")
        self._history = history
        self._refusals = refusals
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._refused: Counter[SignInRefusal] = Counter()
        self._searches = 0

    def note_request(self, page: str, status: int, seconds: float) -> None:
        """Count a response. `page` is the path of the route, or `NO_PAGE`."""
        self._requests[page, status] += 1
        self._seconds.setdefault(page, Histogram()).observe(seconds)

    def refuse_sign_in(self, reason: SignInRefusal) -> None:
        self._refused[reason] += 1

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Return a context manager; a search counts as running inside the context."""
        self._searches += 1
        try:
            yield
        finally:
            self._searches -= 1

    async def tell(self, exposition: Exposition) -> None:
        common = self._common
        add_info(exposition, common)
        exposition.add(SEARCHES, common, self._searches)
        for reason in SignInRefusal:
            exposition.add(REFUSED, f"{common},{label_text(reason=reason.value)}", self._refused[reason])
        for kind, count in sorted(self._refusals.counts.items()):
            exposition.add(CUT, f"{common},{label_text(reason=kind)}", count)
        for (page, status), count in sorted(self._requests.items()):
            exposition.add(REQUESTS, f"{common},{label_text(page=page, status=str(status))}", count)
        await yield_slice()
        for page, histogram in sorted(self._seconds.items()):
            histogram.tell(exposition, SECONDS, f"{common},{label_text(page=page)}")
            await yield_slice()

    def faults(self) -> dict[str, str]:
        return {"cluster": self._history.fault}
