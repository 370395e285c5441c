"""Figures of this process, by the names that Prometheus' own clients use."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from pyromq.metrics.exposition import Exposition, Family, Kind, Telling

CPU = Family(
    "process_cpu_seconds_total", Kind.COUNTER, "Time of the processor that this process has used.", unit="seconds"
)
MEMORY = Family("process_resident_memory_bytes", Kind.GAUGE, "Memory of this process, in use.", unit="bytes")
DESCRIPTORS = Family("process_open_fds", Kind.GAUGE, "Open descriptors: connections and files.")
MOST_DESCRIPTORS = Family("process_max_fds", Kind.GAUGE, "How many descriptors may be open.")
STARTED = Family("process_start_time_seconds", Kind.GAUGE, "When this process began, since 1970.", unit="seconds")

FAMILIES = (CPU, MEMORY, DESCRIPTORS, MOST_DESCRIPTORS, STARTED)


class ProcessMetrics:
    """This process. Where there is no /proc, some figures are not told."""

    def tell(self, exposition: Exposition) -> Telling:
        used = resource.getrusage(resource.RUSAGE_SELF)
        exposition.add(CPU, "", used.ru_utime + used.ru_stime)
        exposition.add(MOST_DESCRIPTORS, "", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            exposition.add(MEMORY, "", pages * resource.getpagesize())
            exposition.add(DESCRIPTORS, "", sum(1 for _ in Path("/proc/self/fd").iterdir()))
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
            exposition.add(STARTED, "", round(time.time() - age, 2))
        except (OSError, ValueError, IndexError, AttributeError):
            pass
        yield None

    def faults(self) -> dict[str, str]:
        return {}
