"""For tests, yours and ours: a whole cluster in this process, and a clock that stands still until it is told to go."""

from pyromq.testing.clock import FakeClock
from pyromq.testing.cluster import Cluster

__all__ = ["Cluster", "FakeClock"]
