"""Streams from a broker: how long a micro-batch takes, how fast an archive is, how old messages are in foreachBatch.

    python benchmarks/spark_streams.py                   # over 4 and 64 queues
    python benchmarks/spark_streams.py --queues 64 --seconds 10

One Spark session with two cores, name server and broker in one process, all on the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyromq import Admin, Message, Producer
from pyromq.spark.archive_sink import ArchiveSink
from servers import Server, our_server
from spark import fill, open_session

ROWS, BATCHES = 200_000, 20
RATE = 1_000
WARM_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", default="4,64")
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    with our_server() as server:
        spark = open_session()
        spark.dataSource.register(ArchiveSink)
        print("| measured | queues | figure |\n|---|---|---|")
        for queues in map(int, arguments.queues.split(",")):
            topic = f"bench-streams-{queues}"
            fill(server, topic, queues, rows=ROWS, body=b"x" * 1024)
            _batches(spark, server, topic, queues)
            _archive(spark, server, topic, queues)
            _live(spark, server, queues, arguments.seconds)
        spark.stop()


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


def _batches(spark: SparkSession, server: Server, topic: str, queues: int) -> None:
    limit = str(ROWS // BATCHES)
    query = _run(_stream(spark, server, topic, startingOffsets="earliest", maxOffsetsPerTrigger=limit), "noop")
    took = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows][2:]
    print(f"| micro-batch of {limit} x 1 KiB, p50 | {queues} | {statistics.median(took):.0f} ms |", flush=True)


def _archive(spark: SparkSession, server: Server, topic: str, queues: int) -> None:
    for _ in range(2):  # the first warms up
        began = time.perf_counter()
        _run(_stream(spark, server, topic, startingOffsets="earliest"), "rocketmq-archive")
        seconds = time.perf_counter() - began
    print(f"| archive to Parquet, 1 KiB | {queues} | {ROWS / seconds / 1000:.0f} thousand rows/s |", flush=True)


def _live(spark: SparkSession, server: Server, queues: int, seconds: float) -> None:
    topic = f"bench-live-{queues}"
    with Admin(server.namesrv or "") as admin:
        admin.create_topic(topic, queues)
    ages: list[float] = []

    def look(frame: DataFrame, batch: int) -> None:
        sent = [int(row.body) for row in frame.select("body").collect()]
        now = time.time_ns()
        ages.extend((now - each) / 1e6 for each in sent)

    with tempfile.TemporaryDirectory(prefix="pyromq-bench-") as folder:
        writer = _stream(spark, server, topic).writeStream.foreachBatch(look)
        query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).start()
        ended = threading.Event()
        feeder = threading.Thread(target=_feed, args=(server, topic, ended))
        feeder.start()
        time.sleep(WARM_SECONDS)
        while not ages:  # the first batch of a session takes long
            time.sleep(0.1)
        ages.clear()
        time.sleep(seconds)
        ended.set()
        feeder.join()
        query.stop()
    ages.sort()
    p50, p99 = (ages[len(ages) * each // 100] for each in (50, 99))
    print(f"| {RATE} messages/s, send to foreachBatch, p50 / p99 | {queues} | {p50:.0f} / {p99:.0f} ms |", flush=True)


def _feed(server: Server, topic: str, ended: threading.Event) -> None:
    with Producer("bench-live", server.namesrv or "") as producer:
        due = time.monotonic()
        while not ended.is_set():
            for _ in range(RATE // 100):
                producer.send_soon(Message(topic, b"%d" % time.time_ns()))
            due += 0.01
            time.sleep(max(due - time.monotonic(), 0))
        producer.flush()


if __name__ == "__main__":
    main()
