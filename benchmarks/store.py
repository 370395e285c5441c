"""The store: starting after a crash, making queues again, flushing, reading the past, rolling, while others send.

    store.py [recovery] [rebuild] [sync] [cold] [rolls]      (default: all)

Recovery and rebuild open a store in a process of their own. The rest has the server on one core, what asks it on the
other; both senders of a ratio run in one round, one after the other.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyromq.clock import SystemClock
from pyromq.message import StoredMessage, encode_properties
from pyromq.record import BLANK_MAGIC, encode
from pyromq.store.config import StoreConfig
from pyromq.store.message_store import MessageStore

GIB = 1 << 30
RECORDS_A_SEGMENT = 4_000
REBUILT_MESSAGES = 2_000_000
QUEUES = 8
BATCH = 500


def opened(root: Path) -> MessageStore:
    store = MessageStore(StoreConfig(root), SystemClock(), store_address=bytes(8))
    store.open()
    return store


def message(number: int, size: int) -> StoredMessage:
    properties = encode_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": "TagA"})
    return StoredMessage("bench", bytes(size), properties, number % QUEUES, born_address=bytes(8))


def write_sparse_log(root: Path, segments: int) -> None:
    """Write full segments of 1 GiB, each with records at its begin and a blank record over the rest."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    now, number = int(time.time() * 1000) - 3_600_000, 0
    for base in range(0, segments * GIB, GIB):
        content = bytearray()
        for _ in range(RECORDS_A_SEGMENT):
            record = message(number, 1024)
            record.queue_offset = number // QUEUES
            record.log_offset, record.store_ms, record.store_address = base + len(content), now + number, bytes(8)
            content += encode(record)
            number += 1
        content += (GIB - len(content)).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
        with (folder / f"{base:020}").open("wb") as file:
            file.write(content)
            file.truncate(GIB)


# Appends, lets the flusher write its checkpoint, appends again and dies.
_KILLED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store import message, opened
store = opened(Path(sys.argv[1]))
for number in range(200):
    store.append_batch([message(n, 1024) for n in range(500)])
time.sleep(4)  # a checkpoint vouches for what is three seconds older
store.append(message(0, 1024))
time.sleep(12)
for number in range(int(sys.argv[3])):
    store.append_batch([message(n, 1024) for n in range(500)])
os.kill(os.getpid(), signal.SIGKILL)
"""

_TIMED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store import opened
start, cpu = time.perf_counter(), time.process_time()
store = opened(Path(sys.argv[1]))
print(time.perf_counter() - start, time.process_time() - cpu, store.max_log_offset - store.min_log_offset)
sys.stdout.flush()
import os
os._exit(0)
"""


def timed_open(root: Path) -> tuple[float, float, int]:
    """Open a store in a fresh process; return seconds, CPU seconds and bytes of log."""
    command = [sys.executable, "-c", _TIMED, str(root), str(Path(__file__).parent)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(out[0]), float(out[1]), int(out[2])


def recovery(root: Path) -> None:
    write_sparse_log(root, 10)
    store = opened(root)  # makes the queues
    store.close()
    for batches in (0, 200):
        here = Path(__file__).parent
        subprocess.run([sys.executable, "-c", _KILLED, str(root), str(here), str(batches)], check=False)
        seconds, cpu, size = timed_open(root)
        print(f"start after a kill, {size / GIB:.1f} GiB of log, {batches * 500} messages since the checkpoint:", end=" ")
        print(f"{seconds:.2f} s ({cpu:.2f} s of CPU)")


def rebuild(root: Path) -> None:
    store = opened(root)
    for first in range(0, REBUILT_MESSAGES, BATCH):
        store.append_batch([message(n, 128) for n in range(first, first + BATCH)])
    store.close()
    shutil.rmtree(root / "consumequeue")
    seconds, cpu, _ = timed_open(root)
    print(f"queues of {REBUILT_MESSAGES:,} messages made again: {seconds:.2f} s", end=", ")
    print(f"{REBUILT_MESSAGES / seconds:,.0f} a second, {REBUILT_MESSAGES / cpu:,.0f} a CPU second")


PARTS = {"recovery": recovery, "rebuild": rebuild}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; default: all")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    for part in arguments.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix=f"pyromq-{part}-"))
        try:
            PARTS[part](folder)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
