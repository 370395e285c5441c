"""For tests: a whole cluster in this process, a clock moved by the test, a faulty network and disk.

Names are loaded at their first use, because pytest loads this package in every run where pyromq is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyromq.testing.blocking_cluster import BlockingCluster as BlockingCluster
    from pyromq.testing.cluster import Cluster as Cluster
    from pyromq.testing.fake_clock import FakeClock as FakeClock
    from pyromq.testing.link import Link as Link
    from pyromq.testing.memory_registry import MemoryRegistry as MemoryRegistry
    from pyromq.testing.replica_set import ReplicaSet as ReplicaSet
    from pyromq.testing.simulated_disk import SimulatedDisk as SimulatedDisk

_HOME = {
    "BlockingCluster": "pyromq.testing.blocking_cluster",
    "Cluster": "pyromq.testing.cluster",
    "FakeClock": "pyromq.testing.fake_clock",
    "Link": "pyromq.testing.link",
    "MemoryRegistry": "pyromq.testing.memory_registry",
    "ReplicaSet": "pyromq.testing.replica_set",
    "SimulatedDisk": "pyromq.testing.simulated_disk",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pyromq.testing' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
