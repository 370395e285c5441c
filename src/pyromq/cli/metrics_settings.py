"""Options and properties as settings of the port for metrics. Imported only where there is one."""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.errors import UsageError
from pyromq.metrics.config import MetricsConfig
from pyromq.remoting.properties import parse_number


def metrics_config(properties: Mapping[str, str], *, port: int | None, host: str | None) -> MetricsConfig:
    """Return the settings; options outrank the file. Raises `UsageError` naming the property and its value."""
    settings = {
        "port": _number(properties, "metricsPort") if port is None else port,
        "host": properties.get("metricsHost", "").strip() if host is None else host,
        "series_limit": _number(properties, "metricsSeriesLimit"),
    }
    return MetricsConfig(**{name: value for name, value in settings.items() if value not in (None, "")})  # type: ignore[arg-type]


def _number(properties: Mapping[str, str], name: str) -> int | None:
    if name not in properties:
        return None
    try:
        return parse_number(properties[name].strip())
    except ValueError as error:
        raise UsageError(f"property {name} is {properties[name]!r}: {error}") from error
