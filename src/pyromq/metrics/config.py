"""Settings of the port for metrics. Reads no files."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.server_settings import check_ranges, setting, settings_by_name


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Where metrics are served, and how many; for all servers of the process."""

    port: int = setting(0, "metricsPort", range=(0, 65535))  # 0: any free one
    # Loopback: the page shows names of topics, groups and clients' versions to every reader.
    host: str = setting("127.0.0.1", "metricsHost")
    # Of one scrape. Each takes some 150 bytes of the answer and 5 us of the server; 100,000 take half a second.
    series_limit: int = setting(100_000, "metricsSeriesLimit", range=(100, 10_000_000))

    def __post_init__(self) -> None:
        check_ranges(self, "setting of metrics ")


SETTINGS = settings_by_name(MetricsConfig)
