"""Settings of the port for metrics. Reads no files."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.server_settings import check_ranges, setting, settings_by_name


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Where metrics are served, and how many series; for all servers of this process."""

    port: int = setting(0, "metricsPort", range=(0, 65535))  # port of the metrics; 0: any free port
    # Address to listen at. Loopback: the metrics show names of topics and groups, and versions of clients, to all.
    host: str = setting("127.0.0.1", "metricsHost")
    # Limit of series in a scrape. Each takes 150 bytes of the response and 5 us; 100,000 take half a second.
    series_limit: int = setting(100_000, "metricsSeriesLimit", range=(100, 10_000_000))

    def __post_init__(self) -> None:
        check_ranges(self, "setting of metrics ")


SETTINGS = settings_by_name(MetricsConfig)
