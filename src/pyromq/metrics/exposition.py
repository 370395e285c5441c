"""Metrics, called families, and their samples as the text that Prometheus reads (format 0.0.4). No I/O here.

# HELP rocketmq_topic_number How many topics there are.
# TYPE rocketmq_topic_number gauge
rocketmq_topic_number{cluster="DefaultCluster",node_type="broker",node_id="broker-a"} 12
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Protocol

from pyromq import speedups
from pyromq.remoting.codes import VERSION_NAME
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.slow_work import yield_slice

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CHUNK_LINES = 1_000  # number of lines that are joined in one step
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # upper bounds of a histogram of times


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One metric: its name, its meaning, and the labels that its samples have besides those of the server.

    `detail`: if there are too many series, the series of such families are left out first.
    """

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    detail: bool = False


class Source(Protocol):
    """A server whose metrics are collected, for example a broker."""

    async def tell(self, exposition: Exposition) -> None:
        """Add all samples of the server to the exposition. The server's state may change meanwhile."""

    def faults(self) -> dict[str, str]:
        """Return the fault of each condition of readiness by name; "" for a condition that is fulfilled."""


class Exposition:
    """The samples of one scrape, by family. If there are more than `most` samples, details are left out first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.left_out = False  # whether samples were left out
        self._lines: dict[Family, list[str]] = {}
        self._count = self._details = 0

    def __len__(self) -> int:
        """Return the number of series, without series left out."""
        return min(self._count + self._details, self.most)

    @property
    def is_full(self) -> bool:
        return self._count >= self.most

    @property
    def wants_details(self) -> bool:
        """Whether there is still room for samples of detail families."""
        return self._count + self._details < self.most

    def add(self, family: Family, labels: str, value: float, *, part: str = "") -> None:
        """Add a sample. `labels` is a result of `label_text`; `part` is the suffix of a histogram's name."""
        if family.detail:
            if not self.wants_details:
                self.left_out = True
                return
            self._details += 1
        elif self.is_full:
            self.left_out = True
            return
        else:
            self._count += 1
        lines = self._lines.get(family)
        if lines is None:
            lines = self._lines[family] = []
        name = family.name + part
        lines.append(f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n")

    def add_details(self, family: Family, labels: str, name: str, values: Mapping[int, float]) -> None:
        """Add a sample of a detail family for each value.

        The key of a value becomes the value of the last label, `name`.
        """
        room = max(0, self.most - self._count - self._details)
        self.left_out |= room < len(values)
        begin = f'{family.name}{{{labels},{name}="'
        lines = [f'{begin}{key}"}} {value}\n' for key, value in islice(values.items(), room)]
        self._details += len(lines)
        self._lines.setdefault(family, []).extend(lines)

    async def text(self) -> list[bytes]:
        """Return all samples as text in the format of Prometheus, in chunks."""
        room = self.most - self._count
        chunks: list[bytes] = []
        for family, lines in self._lines.items():
            if family.detail:
                if room < len(lines):
                    self.left_out = True
                    del lines[room:]
                room -= len(lines)
            kind = family.kind.value
            chunks.append(f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} {kind}\n".encode())
            for first in range(0, len(lines), _CHUNK_LINES):
                chunks.append("".join(lines[first : first + _CHUNK_LINES]).encode())
                await yield_slice()
        return chunks


def label_text(**labels: str) -> str:
    """Return labels as a string. Label values are escaped, because clients choose them."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped.encode(errors="replace").decode()  # replaces lone surrogates


class Histogram:
    """Counts values by ascending upper bounds, each of which is included."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def tell(self, exposition: Exposition, family: Family, labels: str) -> None:
        """Add one sample for each bound, the sum of the values, and the number of values."""
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            exposition.add(family, f'{labels},le="{bound}"', total, part="_bucket")
        exposition.add(family, labels, round(self._sum, 6), part="_sum")
        exposition.add(family, labels, total, part="_count")


INFO = Family(
    "pyromq_info", MetricKind.GAUGE, "1, with the version and how requests are answered.", ("version", "hot_path")
)
CONNECTIONS = Family("pyromq_connections", MetricKind.GAUGE, "Open connections.")
REFUSED = Family(
    "pyromq_refused_total",
    MetricKind.COUNTER,
    "Refused requests and connections, by the setting that limits them, or the reason.",
    ("reason",),
)

FAMILIES = (INFO, CONNECTIONS, REFUSED)


def add_info(exposition: Exposition, common: str) -> None:
    """Add the metric with the version of pyromq; `common` are the labels of the server."""
    exposition.add(INFO, f"{common},{label_text(version=VERSION_NAME, hot_path=speedups.hot_path)}", 1)


def add_server_samples(exposition: Exposition, common: str, *, connections: int, refusals: RejectionLog) -> None:
    """Add the metrics that every server has; `common` are the labels of the server."""
    add_info(exposition, common)
    exposition.add(CONNECTIONS, common, connections)
    for reason, count in sorted(refusals.counts.items()):
        exposition.add(REFUSED, f"{common},{label_text(reason=reason)}", count)
