"""Prints one table: Spark writing and reading here beside spark-sql-kafka on a Kafka broker, tuned, taking turns.

    spark_kafka.py [--peer FOLDER] [--only write,noop,latency] [--conf NAME=VALUE]... [--quick]

The Kafka side is a program of its own (`--peer` or PYROMQ_SPARK_PEER: its folder, set up by its `setup.sh`, and with
msgspec in its environment). It runs one code on both systems, each with a Spark session of two cores, and Kafka's
broker; ours is started here. All share the machine. Reads go into nothing and have the columns that Kafka's source has.
`--conf`: both once more in the same run, in sessions with these settings of Spark: a second table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from report import print_machine
from servers import Server, our_server
from spark import KAFKA_LIKE

SOURCES = Path(__file__).parents[1] / "src"
TOOL = Path(__file__).parent / "loads" / "spark_topic.py"
KAFKA, OURS = "kafka-tuned", "rocketmq"
SET = "-set"  # behind the name of what has settings of `--conf`
WHOLE = ["--reps", "5", "--rows", "1024:200000,100:600000", "--seconds", "10", "--warm", "12"]
OPERATIONS = {
    "write": "write, at least once",
    "noop": "read into nothing",
    "latency": "1,000 messages of 1 KiB a second",
}
Records = list[dict[str, object]]
Systems = dict[str, dict[str, object]]


def main() -> None:
    options = _options()
    print_machine()
    peer: Path = options.peer
    python = peer / ".venv" / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    state = "from pyromq import speedups; print(speedups.reason or 'compiled')"
    form = subprocess.run([python, "-c", state], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(f"pyromq in the Spark processes: {form.strip()}\n", flush=True)
    # `start` says so when this peer's Kafka runs already; then it is left running, too.
    was_running = subprocess.run([peer / "kafka.sh", "status"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    subprocess.run([peer / "kafka.sh", "start"], stdout=subprocess.DEVNULL, check=True)
    try:
        with our_server(core=None) as server, tempfile.TemporaryDirectory(prefix="pyromq-bench-") as folder:
            systems = Path(folder) / "systems.json"
            ours = {OURS: _system(server, Path(folder))}
            compared = ours | (_with_settings(ours | _kafka(peer), options.conf) if options.conf else {})
            systems.write_text(json.dumps(compared))
            run = [
                "--run",
                ",".join([KAFKA, *compared]),
                "--only",
                options.only,
                "--systems",
                systems,
                "--out",
                "beside-pyromq",
            ]
            run += ["--quick"] if options.quick else WHOLE
            subprocess.run([python, "bench.py", *run], cwd=peer, env=environment, stdout=subprocess.DEVNULL, check=True)
    finally:
        if not was_running:
            subprocess.run([peer / "kafka.sh", "stop"], stdout=subprocess.DEVNULL, check=True)
    records = json.loads((peer / "out" / "beside-pyromq.json").read_text())["records"]
    _print(records, KAFKA, OURS)
    if options.conf:
        print(f"\nBoth with {', '.join(options.conf)}:\n")
        _print(records, KAFKA + SET, OURS + SET)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = os.environ.get("PYROMQ_SPARK_PEER")
    parser.add_argument("--peer", type=Path, default=folder, help="folder of the Kafka side [PYROMQ_SPARK_PEER]")
    parser.add_argument("--only", default=",".join(OPERATIONS), metavar="WHAT,...", help=f"of {', '.join(OPERATIONS)}")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark, for both once more"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, once")
    options = parser.parse_args()
    if not (options.peer and (options.peer / ".venv").is_dir()):
        parser.error("needs the Kafka side, set up: --peer or PYROMQ_SPARK_PEER")
    return options


def _system(server: Server, folder: Path) -> dict[str, object]:
    """Say how the peer reaches our server: what its `systems.py` says of Kafka."""
    pid = folder / "pid"
    pid.write_text(str(server.pid))
    namesrv = str(server.namesrv)
    tool = ["{python}", str(TOOL)]
    return {
        "format": "rocketmq",
        "register": "pyromq.spark.source:RocketMQDataSource",
        "source": {
            "namesrvAddr": namesrv,
            "subscribe": "{topic}",
            "startingOffsets": "earliest",
            "columns": KAFKA_LIKE,
        },
        "live": {"startingOffsets": "latest"},
        "read": ["cast(keys[0] as binary) as key", "body as value", "storeTimestamp as timestamp"],
        "sink": {"namesrvAddr": namesrv, "topic": "{topic}"},
        "write": ["cast(key as string) as keys", "value as body"],
        "create": [*tool, "create", namesrv, "{topic}", "{partitions}"],
        "feed": [*tool, "feed", namesrv, "{topic}", "{rate}", "{seconds}", "{size}"],
        "pidfile": str(pid),
    }


def _kafka(peer: Path) -> Systems:
    """Return the Kafka side as the peer has it."""
    code = f"import json, systems; print(json.dumps(systems.SYSTEMS[{KAFKA!r}]))"
    python = peer / ".venv" / "bin" / "python"
    found = subprocess.run([python, "-c", code], cwd=peer, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {KAFKA: json.loads(found)}


def _with_settings(systems: Systems, given: list[str]) -> Systems:
    """Return the same systems, each in a session of its own with further settings of Spark."""
    conf = dict(each.split("=", 1) for each in given)
    return {
        name + SET: system | {"session": name + SET, "conf": dict(system.get("conf", {})) | conf}
        for name, system in systems.items()
    }


def _print(records: Records, kafka: str, pyromq: str) -> None:
    print(f"| | {KAFKA} | pyromq | pyromq : Kafka |\n|---|---:|---:|---:|")
    records = [each for each in records if each["op"] in OPERATIONS]
    cases = dict.fromkeys((each["op"], each["size"], each["partitions"]) for each in records)
    for operation, size, queues in cases:
        theirs, ours = (
            [
                each
                for each in records
                if (each["op"], each["size"], each["partitions"], each["system"]) == (operation, size, queues, system)
            ]
            for system in (kafka, pyromq)
        )
        for failed in (each["error"] for each in (*theirs, *ours) if "error" in each):
            print(f"{operation}, {size} B, {queues} queues: {failed}", file=sys.stderr)
        keys = ("p50", "p99") if operation == "latency" else ("rows_s",)
        for key in keys:
            pairs = [(a[key], b[key]) for a, b in zip(theirs, ours, strict=False) if a.get(key) and b.get(key)]
            what = f"{OPERATIONS[str(operation)]}, {size} B, {queues} queues"
            print(f"| {what}{_unit(key)} | {_cells(pairs, key)} |")


def _unit(key: str) -> str:
    return ", thousand rows/s" if key == "rows_s" else f", {key}, ms"


def _cells(pairs: list[tuple[float, float]], key: str) -> str:
    if not pairs:
        return "- | - | -"
    scale = 1000 if key == "rows_s" else 1
    theirs, ours = (statistics.median(values) / scale for values in zip(*pairs, strict=True))
    ratios = [our / their for their, our in pairs]
    return f"{theirs:,.0f} | {ours:,.0f} | **{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
