"""Settings of the port for metrics. Reads no files."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.errors import UsageError


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Where metrics are told, and how many."""

    port: int = 0  # 0: any free one
    host: str = "127.0.0.1"  # loopback: whoever reaches it reads names of topics, groups and clients' versions
    # Told at once. Each takes some 150 bytes of an answer and 5 us of the server: a scrape of so many half a second.
    series_limit: int = 100_000

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"setting of metrics {name} is {value!r}; it must be {least} to {most}")


_RANGES = {"port": (0, 65535), "series_limit": (100, 10_000_000)}
