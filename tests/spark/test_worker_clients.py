"""Memory of a process that runs one task after the other; each of these in a process of its own."""

import platform
import subprocess
import sys

import pytest

COST = """
import gc, time
from pyromq.spark.worker_clients import keep_memory

def cycle():
    gone = []
    gone.append(gone)

kept = [[each] for each in range(100_000)]
keep_memory()
before = gc.get_stats()[2]["collected"]
cycle()
gc.collect()
print(gc.get_freeze_count() >= 100_000, gc.get_stats()[2]["collected"] - before >= 1)
"""

FAULTS = """
import resource, sys
from pyromq.spark.write.writer import sink_client
from pyromq.spark.given_options import sink_options

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

sink_client(sink_options({"namesrvAddr": sys.argv[1], "topic": "any"}))
bytearray(12 << 20)  # is taken from the system
before = faults()
for _ in range(10):
    bytearray(12 << 20)
print((faults() - before) * resource.getpagesize() < 12 << 20)
"""


def test_what_is_there_is_not_looked_at_again_and_new_cycles_still_end():
    done = subprocess.run([sys.executable, "-c", COST], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how memory is kept is told to glibc")
def test_a_process_that_writes_keeps_memory_for_batches_of_arrow(namesrv):
    done = subprocess.run([sys.executable, "-c", FAULTS, namesrv], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
