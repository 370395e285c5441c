"""Families of metrics, and their samples as the text that Prometheus reads (format 0.0.4). No I/O here.

# HELP rocketmq_topic_number How many topics there are.
# TYPE rocketmq_topic_number gauge
rocketmq_topic_number{cluster="DefaultCluster",node_type="broker",node_id="broker-a"} 12
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Protocol

from pyromq.slow_work import breathe

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CHUNK_LINES = 1_000  # put together at once

# Of a source: it yields wherever it may be left for a while, or what a thread has to do before it goes on.


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One metric: its name, what it means, and the labels of its samples behind those of the source.

    `detail`: where there are too many series, these are left out first.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    detail: bool = False


class Source(Protocol):
    """Who has figures to tell: a broker, a name server."""

    async def tell(self, exposition: Exposition) -> None:
        """Add all samples. What they speak of may change meanwhile."""

    def faults(self) -> dict[str, str]:
        """Return by condition of being ready why it is not fulfilled; "" where it is."""


class Exposition:
    """The samples of one scrape, by family, `most` at most: details are the first that are left out."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.left_out = False  # whether there are more
        self._lines: dict[Family, list[str]] = {}
        self._count = self._details = 0

    def __len__(self) -> int:
        """How many series are told."""
        return min(self._count + self._details, self.most)

    @property
    def is_full(self) -> bool:
        return self._count >= self.most

    @property
    def wants_details(self) -> bool:
        """Whether there is room for details, as far as is known."""
        return self._count + self._details < self.most

    def add(self, family: Family, labels: str, value: float, *, part: str = "") -> None:
        """Add a sample; `labels` as `label_text` returns them, `part` is that of a histogram."""
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
        """Add a sample of a family of details for each value; its key is what the last label, `name`, says."""
        room = max(0, self.most - self._count - self._details)
        self.left_out |= room < len(values)
        begin = f'{family.name}{{{labels},{name}="'
        lines = [f'{begin}{key}"}} {value}\n' for key, value in islice(values.items(), room)]
        self._details += len(lines)
        self._lines.setdefault(family, []).extend(lines)

    async def text(self) -> list[bytes]:
        """Return the text in pieces."""
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
                await breathe()
        return chunks


def label_text(**labels: str) -> str:
    """Return labels as samples have them; names and values of strangers are written so that they stay values."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped.encode(errors="replace").decode()  # half characters
