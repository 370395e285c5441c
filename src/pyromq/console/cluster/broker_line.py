"""What a broker says of itself, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from pyromq.console.cluster.snapshot import BrokerView


class BrokerLine:
    """A broker's figures; None for what it does not say. `runtime` is what it said, of its master by default."""

    def __init__(self, broker: BrokerView, runtime: Mapping[str, str] | None = None) -> None:
        self.broker = broker
        self.runtime = runtime = broker.runtime if runtime is None else runtime
        self.version = runtime.get("brokerVersionDesc", "")
        self.in_per_second = _first(runtime.get("putTps"))
        self.out_per_second = _first(runtime.get("getTransferedTps", runtime.get("getTransferredTps")))
        self.disk = _first(runtime.get("commitLogDiskRatio"))
        self.started_ms = int(_first(runtime.get("bootTimestamp")) or 0)
        self.refusal = runtime.get("sendRefusal")
        self.log_begin = _whole(runtime.get("commitLogMinOffset"))
        self.log_end = _whole(runtime.get("commitLogMaxOffset"))
        self.oldest_ms = _whole(runtime.get("earliestMessageTimeStamp"))
        self.undispatched = _whole(runtime.get("dispatchBehindBytes"))

    @property
    def log_bytes(self) -> int | None:
        """How much of the commit log is kept."""
        if self.log_begin is None or self.log_end is None:
            return None
        return self.log_end - self.log_begin


def _first(text: str | None) -> float | None:
    """Return the first of numbers such as `10.5 9.2 8.1`."""
    try:
        value = float((text or "").split()[0])
    except (ValueError, IndexError):
        return None
    return value if isfinite(value) else None


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
