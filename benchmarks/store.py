"""The store: starting after a crash, making queues again, flushing, reading the past, rolling, thousands of queues.

    store.py [recovery] [rebuild] [sync] [cold] [rolls] [queues]      (default: all)

Recovery and rebuild open a store in a process of their own. The rest has the server on one core, what asks it on the
other; both sides of a ratio run in one round, one after the other. `sync` and `rolls` need the load generator (see
end_to_end.py); with `--java` and a folder of jars `rolls` measures the genuine broker beside ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from random import Random

from generator import Generator, Load, Outcome
from loads.disk_load import Readers, closed_loop, make_topics, paced, pipelined, send_frame
from pyromq.clock import SystemClock
from pyromq.message import StoredMessage, encode_properties
from pyromq.record import BLANK_MAGIC, encode
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from servers import Server, Start, java_broker, our_server

GIB = 1 << 30
RECORDS_A_SEGMENT = 4_000
REBUILT_MESSAGES = 2_000_000
QUEUES = 8
BATCH = 500
HALF_LOAD_SECONDS = 8
RECORD_BYTES = 1200  # of a message of 1 KiB, about
MANY_QUEUES = 10_000
COLD_BYTES = 2 << 30


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


def recovery(root: Path, _: argparse.Namespace) -> None:
    write_sparse_log(root, 10)
    store = opened(root)  # makes the queues
    store.close()
    for batches in (0, 200):
        here = Path(__file__).parent
        subprocess.run([sys.executable, "-c", _KILLED, str(root), str(here), str(batches)], check=False)
        seconds, cpu, size = timed_open(root)
        print(
            f"start after a kill, {size / GIB:.1f} GiB of log, {batches * 500} messages since the checkpoint:", end=" "
        )
        print(f"{seconds:.2f} s ({cpu:.2f} s of CPU)")


def rebuild(root: Path, _: argparse.Namespace) -> None:
    store = opened(root)
    for first in range(0, REBUILT_MESSAGES, BATCH):
        store.append_batch([message(n, 128) for n in range(first, first + BATCH)])
    store.close()
    shutil.rmtree(root / "consumequeue")
    seconds, cpu, _ = timed_open(root)
    print(f"queues of {REBUILT_MESSAGES:,} messages made again: {seconds:.2f} s", end=", ")
    print(f"{REBUILT_MESSAGES / seconds:,.0f} a second, {REBUILT_MESSAGES / cpu:,.0f} a CPU second")


def sync(root: Path, options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {"ASYNC_FLUSH": [], "SYNC_FLUSH": []}
    for number in range(options.rounds):
        for flush, found in rates.items():
            data = root / f"{flush}{number}"
            with our_server(data, settings={"flushDiskType": flush}) as server:
                outcome = Generator(options.lg).measure(server, Load(64, 1), seconds=4, warm_seconds=1)
            print(f"{flush}, 64 x 1, 128 B: {outcome}")
            found.append(outcome.rate)
            shutil.rmtree(data)
    ratios = [slow / fast for fast, slow in zip(*rates.values(), strict=True)]
    print(f"ratios {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}")


def cold(root: Path, options: argparse.Namespace) -> None:
    """Send at a steady rate alone, then beside readers of what is on disk only."""
    data = root / "data"
    with our_server(data) as server:
        while sum(path.stat().st_blocks for path in (data / "commitlog").glob("*")) * 512 < COLD_BYTES:
            closed_loop(server, connections=64, size=4096, seconds=5)
    for number in range(options.rounds):
        with our_server(data) as server:
            alone = paced(server, rate=1000, size=1024, seconds=5)
            with Readers(server, 2) as warm_readers:
                warm = paced(server, rate=1000, size=1024, seconds=5)
        forget(data)
        with our_server(data) as server, Readers(server, 2) as cold_readers:
            chilled = paced(server, rate=1000, size=1024, seconds=5)
        print(f"round {number + 1}, 1,000 sends a second of 1 KiB")
        print(f"  alone: {alone}")
        print(f"  beside readers of what is in memory ({warm_readers.messages:,} messages of 4 KiB): {warm}")
        print(f"  beside readers of what is not ({cold_readers.messages:,}): {chilled}")


def forget(folder: Path) -> None:
    """Have files in no memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rolls(root: Path, options: argparse.Namespace) -> None:
    """Send at half of what a server takes, into files of 1 GiB, then into ones that are full in a moment."""
    for number in range(options.rounds):
        for megabytes in (1024, 16):
            data = root / f"{megabytes}-{number}"
            settings = {"mappedFileSizeCommitLog": megabytes << 20}
            starts: dict[str, Start] = {"pyromq": partial(our_server, data, settings=settings)}
            if options.java:
                starts["Java"] = java_broker(options.java, settings=settings)
            for name, start in starts.items():
                half, outcome = half_load(Generator(options.lg), start, warm_seconds=8 if name == "Java" else 1)
                count = outcome.rate * HALF_LOAD_SECONDS * RECORD_BYTES / (megabytes << 20)
                print(f"{name}, files of {megabytes} MiB, {count:.0f} rolls, half load {half:,.0f}: {outcome}")
            shutil.rmtree(data)


def half_load(generator: Generator, start: Start, *, warm_seconds: float) -> tuple[float, Outcome]:
    """Return half the rate of a closed loop, and what sends wait at that."""
    with start() as server:
        most = generator.measure(server, Load(64, 1, 1024), seconds=3, warm_seconds=warm_seconds).rate
        load = Load(16, 1, 1024, rate=most / 2)
        return most / 2, generator.measure(server, load, seconds=HALF_LOAD_SECONDS, warm_seconds=1)


def queues(root: Path, options: argparse.Namespace) -> None:
    """Fill thousands of queues beside one topic's, in turns; look at what that costs, and start again."""
    data = root / "data"
    names = [f"topic-{number}" for number in range(MANY_QUEUES // QUEUES)]
    with our_server(data) as server:
        make_topics(server, [*names, "bench"], QUEUES)
        many = [send_frame(name, queue, 128) for name in names for queue in range(QUEUES)]
        Random(0).shuffle(many)
        one = [send_frame("bench", queue, 128) for queue in range(QUEUES)]
        pipelined(server, one, count=50_000)
        for _ in range(options.rounds):
            alone = pipelined(server, one, count=200_000)
            spread = pipelined(server, many, count=MANY_QUEUES * 100 // options.rounds)
            print(f"one topic {alone:,.0f} a second, {len(many):,} queues {spread:,.0f}: {spread / alone:.2f}")
        print(f"filled: {weight(server)}")
        time.sleep(15)  # the key index follows, queues are flushed
        print(f"idle: {weight(server)}")
    for _ in range(options.rounds):
        with our_server(data) as server:
            print(f"started after {server.ready_seconds:.2f} s, {weight(server)}")


def weight(server: Server) -> str:
    process = Path(f"/proc/{server.pid}")
    own, files = server.resident_mb()
    count = len((process / "maps").read_text().splitlines())
    return (
        f"{own:.0f} MB + {files:.0f} MB of files, {len(list((process / 'fd').iterdir()))} descriptors, {count} mappings"
    )


PARTS = {part.__name__: part for part in (recovery, rebuild, sync, cold, rolls, queues)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; default: all")
    parser.add_argument("--lg", default=os.environ.get("PYROMQ_LG"), help="the load generator [PYROMQ_LG]")
    parser.add_argument(
        "--java",
        type=Path,
        default=os.environ.get("PYROMQ_JARS"),
        metavar="JARS",
        help="the genuine broker's [PYROMQ_JARS]",
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.lg and {"sync", "rolls"} & set(arguments.parts or PARTS):
        parser.error("sync and rolls need the load generator: --lg or PYROMQ_LG")
    print(f"load {os.getloadavg()[0]:.1f}")
    for part in arguments.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix=f"pyromq-{part}-"))
        try:
            PARTS[part](folder, arguments)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
