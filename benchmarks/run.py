"""Runs the programs that make the tables of results.md, one after the other, and says how long each took.

    run.py [TABLE ...] [--quick]        (`make bench T="servers delays"`)

Without names: all that belong to the figures of a release, 25 minutes on a quiet machine. `--quick`: two short rounds
of each, to see that they work. `list` says what there is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Table:
    """One program with its arguments, and those that make it quick."""

    what: str
    command: str
    quick: str
    in_all: bool = True


TABLES = {
    "servers": Table(
        "sends, pulls, waits and costs of the server beside C, Java and plain Python", "end_to_end.py", "--rounds 2"
    ),
    "replication": Table(
        "sets of two beside a broker alone; the log's stream; catching up (needs etcd)",
        "replication.py",
        "--rounds 1 --seconds 1 --mb 300",
        in_all=False,
    ),
    "filters": Table("records judged by SQL92 expressions", "filters.py", "--rounds 2"),
    "delays": Table(
        "sends with a time of delivery beside plain ones; lateness",
        "delays.py --pending 0 --rounds 5 --seconds 1.5",
        "--rounds 2 --seconds 1",
    ),
    "pops": Table(
        "pops beside pulls; how late redeliveries are; kills of the broker under pops",
        "pops.py",
        "--messages 20000 --rounds 1 --late 500 --kills 3 --kill-messages 5000",
        in_all=False,
    ),
    "many-pops": Table(
        "10,000 waiting pops, and a million messages in flight",
        "many_pops.py",
        "--waiting 500 --sends 100 --messages 40000",
        in_all=False,
    ),
    "proxy": Table(
        "the proxy for RocketMQ 5's clients beside Java's (needs Go, Java, and the jars of `make interop`)",
        "proxy.py",
        "--seconds 2 --rounds 1",
        in_all=False,
    ),
    "consumers": Table(
        "push consumers: how many a second, beside Java's client",
        "consumer_rates.py --kinds batches single",
        "--rounds 2 --kinds batches",
    ),
    "producers": Table(
        "async and blocking producers at the C server", "producing.py --shapes 64 blocking", "--rounds 2 --seconds 1"
    ),
    "spark-kafka": Table("Spark's sink and source beside tuned Kafka", "spark_kafka.py", "--quick"),
    "spark-writing": Table(
        "Spark's sink, each way of delivery",
        "spark_writing.py --rows 1024:200000",
        "--rounds 1 --rows 1024:50000,100:100000",
    ),
    "spark-reading": Table(
        "Spark's source beside rows out of memory",
        "spark.py --reads noop",
        "--rounds 1 --rows 1024:50000,100:100000",
        in_all=False,
    ),
    "spark-streams": Table(
        "from send to foreachBatch", "spark_streams.py --only live", "--seconds 5 --queues 4", in_all=False
    ),
    "spark-archive": Table(
        "micro-batches of what is there, and an archive's", "spark_streams.py --only batches,archive", "", in_all=False
    ),
    "scale": Table(
        "one broker and one name server as topics, queues, groups, connections, log and brokers grow",
        "scale.py",
        "--most 100",
        in_all=False,
    ),
    "groups": Table(
        "consumers that start, join, leave and are killed, beside Java's",
        "consuming.py",
        "--rounds 1",
        in_all=False,
    ),
    "pending": Table(
        "ten million messages that wait for their time", "delays.py --rounds 0", "--pending 200000", in_all=False
    ),
    "fairness": Table("who waits while an administrator asks for something", "fairness.py", "--rounds 1", in_all=False),
    "metrics": Table("what a scrape of metrics takes, and who waits for it", "metrics.py", "--rounds 1", in_all=False),
    "console": Table("how long the console's views take", "console.py", "--rounds 1", in_all=False),
    "searching": Table(
        "how long the console looks among a million messages", "searching.py", "--rounds 1", in_all=False
    ),
    "hostile": Table(
        "how long others wait for one hostile client, and how much memory it takes",
        "hostile.py",
        "--size 0.1",
        in_all=False,
    ),
    "hostile-proxy": Table(
        "the same at the port of RocketMQ 5's clients", "hostile_proxy.py", "--size 0.1", in_all=False
    ),
    "late-timer": Table("how late a timer is in a busy broker", "late_timer.py", "--seconds 1", in_all=False),
    "store": Table(
        "recovery, flushing, reading the past, rolling, many queues", "store.py", "--rounds 1", in_all=False
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}, or list")
    parser.add_argument("--quick", action="store_true", help="two short rounds of each")
    options = parser.parse_args()
    if options.tables == ["list"]:
        for name, table in TABLES.items():
            print(f"{name:<14} {'' if table.in_all else '(by name only) '}{table.what}: {table.command}")
        return
    if unknown := set(options.tables) - TABLES.keys():
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    for name in options.tables or [name for name, table in TABLES.items() if table.in_all]:
        _run(name, quick=options.quick)


def _run(name: str, *, quick: bool) -> None:
    table = TABLES[name]
    command = table.command + (f" {table.quick}" if quick else "")
    print(
        f"## {name}: {table.what}\n\n`python benchmarks/{command}`, load before {os.getloadavg()[0]:.1f}\n", flush=True
    )
    script, *arguments = command.split()
    started = time.monotonic()
    done = subprocess.run([sys.executable, str(FOLDER / script), *arguments], check=False)
    ended = f", and failed ({done.returncode})" if done.returncode else ""
    print(f"\nIt took {time.monotonic() - started:.0f} s{ended}.\n", flush=True)


if __name__ == "__main__":
    main()
