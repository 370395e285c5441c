"""Measures streams from a broker: age of messages, micro-batches, archive, idle query and import.

The age is measured in foreachBatch; an idle query is measured by what it holds open.

    python benchmarks/spark_streams.py                   # over 4 and 64 queues
    python benchmarks/spark_streams.py --queues 64 --seconds 10

One Spark session with two cores, name server and broker in one process, the feed in another, all on the same machine.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyromq import Admin, Message, Producer
from pyromq.spark.archive.sink import ArchiveSink
from servers import Server, our_server
from spark import fill, open_session

BATCHES = 20
RATE = 1_000
SIZE = 1024
STAMP = 19  # digits of the time in ns
PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
WARM_SECONDS = 15.0
IMPORT = "import time, pyspark.sql.datasource, pyspark.sql.types as _; begun = time.perf_counter(); "
IMPORT += "import pyspark_rocketmq, sys; assert 'pyarrow' not in sys.modules; print(time.perf_counter() - begun)"


def main() -> None:
    arguments = _arguments()
    if arguments.feed:
        _feed(*arguments.feed)
        return
    with our_server(core=None) as server:
        spark = open_session()
        spark.dataSource.register(ArchiveSink)
        print("| measured | queues | figure |\n|---|---|---|")
        _import()
        for queues in map(int, arguments.queues.split(",")):
            topic = f"bench-streams-{queues}"
            fill(server, topic, queues, rows=arguments.rows, body=b"x" * SIZE)
            for what in arguments.only.split(","):
                if what == "live":
                    _live(spark, server, queues, arguments.seconds, dict(each.split("=") for each in arguments.option))
                elif what == "batches":
                    _batches(spark, server, topic, queues, arguments.rows)
                elif what == "archive":
                    _archive(spark, server, topic, queues, arguments.rows)
        spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", default="4,64")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rows", type=int, default=200_000, help="in the topics that are read as they are")
    parser.add_argument("--only", default="live,batches,archive")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the live stream")
    parser.add_argument("--feed", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def _import() -> None:
    """Of the connector alone; Spark's own modules are there before it."""
    runs = [subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True) for _ in range(6)]
    took = [float(each.stdout) * 1000 for each in runs[1:]]
    print(f"| import of the connector | | {statistics.median(took):.0f} ms |", flush=True)


def _stream(spark: SparkSession, server: Server, topic: str, **options: str) -> DataFrame:
    given = {"namesrvAddr": server.namesrv, "subscribe": topic} | options
    return spark.readStream.format("rocketmq").options(**given).load()


def _run(frame: DataFrame, form: str, **options: str) -> StreamingQuery:
    """Run a query over what is available to its end."""
    with tempfile.TemporaryDirectory(prefix="pyromq-bench-") as folder:
        writer = frame.writeStream.format(form).option("checkpointLocation", f"{folder}/checkpoint")
        if form != "noop":
            writer = writer.option("path", f"{folder}/lake")
        query = writer.options(**options).trigger(availableNow=True).start()
        query.awaitTermination()
        return query


def _batches(spark: SparkSession, server: Server, topic: str, queues: int, rows: int) -> None:
    limit = str(rows // BATCHES)
    query = _run(_stream(spark, server, topic, startingOffsets="earliest", maxOffsetsPerTrigger=limit), "noop")
    took = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows][2:]
    print(f"| micro-batch of {limit} x 1 KiB, p50 | {queues} | {statistics.median(took):.0f} ms |", flush=True)


def _archive(spark: SparkSession, server: Server, topic: str, queues: int, rows: int) -> None:
    """Archive the topic in one micro-batch; also without what a query costs to begin and to end."""
    whole, batches = [], []
    for _ in range(4):
        began = time.perf_counter()
        query = _run(_stream(spark, server, topic, startingOffsets="earliest"), "rocketmq-archive")
        whole.append(rows / (time.perf_counter() - began) / 1000)
        took = sum(each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows)
        batches.append(rows / took)
    for what, rates in (("the whole query", whole[1:]), ("its batch alone", batches[1:])):  # the first warms up
        figure = f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f}) thousand rows/s"
        print(f"| archive to Parquet, 1 KiB, {what} | {queues} | {figure} |", flush=True)


def _live(spark: SparkSession, server: Server, queues: int, seconds: float, options: dict[str, str]) -> None:
    topic = f"bench-live-{queues}"
    assert server.namesrv is not None
    with Admin(server.namesrv) as admin:
        admin.create_topic(topic, queues)
    ages: list[float] = []

    def look(frame: DataFrame, batch: int) -> None:
        sent = frame.selectExpr(f"substring(body, 1, {STAMP}) as sent").toArrow().column(0).to_pylist()
        now = time.time_ns()
        ages.extend((now - int(each)) / 1e6 for each in sent)

    with tempfile.TemporaryDirectory(prefix="pyromq-bench-") as folder:
        stream = _stream(spark, server, topic, columns="keys,body,storeTimestamp", **options)
        writer = stream.writeStream.foreachBatch(look)
        query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).start()
        query.processAllAvailable()
        with subprocess.Popen([sys.executable, __file__, "--feed", server.namesrv, topic]) as feeder:
            time.sleep(WARM_SECONDS)
            ages.clear()
            warm = query.lastProgress.batchId if query.lastProgress else 0
            time.sleep(seconds)
            found = sorted(ages)
            times = [each.durationMs for each in query.recentProgress if each.batchId > warm and each.numInputRows]
            feeder.terminate()
        query.processAllAvailable()
        time.sleep(2)
        connections = _connections(server)
        query.stop()
    p50, p99 = (found[len(found) * each // 100] for each in (50, 99))
    print(f"| {RATE} messages/s, send to foreachBatch, p50 / p99 | {queues} | {p50:.0f} / {p99:.0f} ms |")
    took = [each["triggerExecution"] for each in times]
    print(f"| micro-batch meanwhile, p50 / most | {queues} | {statistics.median(took):.0f} / {max(took)} ms |")
    parts = ", ".join(f"{part} {statistics.median(each.get(part, 0) for each in times):.0f}" for part in PARTS)
    print(f"| of that, ms | {queues} | {parts} |")
    print(f"| connections to the broker, idle: of each process | {queues} | {connections} |", flush=True)


def _connections(server: Server) -> str:
    """Count the open connections to the broker's port by the process that holds them; named by its Python module."""
    ends = re.compile(rf"^ *\d+: \S+ \w+:{server.port:04X} 01 (?:\S+ +){{5}}(\d+)", re.MULTILINE)
    sockets = {f"socket:[{each}]" for each in ends.findall(Path("/proc/net/tcp").read_text())}
    held: Counter[str] = Counter()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is another user's
            links = [str(link.readlink()) for link in (process / "fd").iterdir()]
            words = (process / "cmdline").read_text().split("\0")
            name = words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name
            held[f"{name.rpartition('.')[2]} {process.name}"] += len(sockets.intersection(links))
    return ", ".join(f"{name.split()[0]}: {count}" for name, count in held.items() if count) or "none"


def _feed(namesrv: str, topic: str) -> None:
    """Send until this process is ended."""
    filling = os.urandom(SIZE - STAMP)
    with Producer("bench-live", namesrv) as producer:
        due = time.monotonic()
        while True:
            for _ in range(RATE // 200):
                producer.send_soon(Message(topic, b"%019d" % time.time_ns() + filling, keys="k1"))
            due += 1 / 200
            time.sleep(max(due - time.monotonic(), 0))


if __name__ == "__main__":
    main()
