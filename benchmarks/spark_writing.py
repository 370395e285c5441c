"""Spark writing to a broker, at least once and exactly once, beside the same rows into nothing.

    python benchmarks/spark_writing.py                       # 1 KiB and 100 B over 4 and 64 queues
    python benchmarks/spark_writing.py --rows 1024:100000 --queues 4

One Spark session with two cores, name server and broker in one process, all on the same machine. A write counts until
every row can be seen by consumers: exactly once that is after the job itself has ended. Rates are medians of rounds in
which the ways of writing take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from pyspark.sql import DataFrame, SparkSession

from pyromq import Admin, PullConsumer
from servers import Server, our_server

NOTHING = "(nothing)"
WAYS = ("atLeastOnce", "idempotent", "exactlyOnce", NOTHING)


def main() -> None:
    arguments = _arguments()
    sizes = dict(tuple(map(int, each.split(":"))) for each in arguments.rows.split(","))
    with our_server() as server:
        spark = _session()
        print("| body | queues | delivery | thousand rows/s | job alone | broker CPU us a row |")
        print("|---|---|---|---|---|---|")
        for size, rows in sizes.items():
            for queues in map(int, arguments.queues.split(",")):
                _compare(
                    _frame(spark, rows, size), server, f"bench-{size}-{queues}", rows=rows, rounds=arguments.rounds
                )
        spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1024:200000,100:600000", help="size:rows,...")
    parser.add_argument("--queues", default="4,64")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _session() -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    return builder.config("spark.log.level", "ERROR").getOrCreate()


def _frame(spark: SparkSession, rows: int, size: int) -> DataFrame:
    body = f"cast(repeat('x', {size}) as binary) as body"
    return spark.range(0, rows, 1, 2).selectExpr("concat('k', id) as keys", body)


def _compare(frame: DataFrame, server: Server, topic: str, *, rows: int, rounds: int) -> None:
    assert server.namesrv is not None
    with Admin(server.namesrv) as admin:
        admin.create_topic(topic, int(topic.rpartition("-")[2]))
    seen: dict[str, list[float]] = {way: [] for way in WAYS}
    saved: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, float] = {}
    with PullConsumer("bench-spark", server.namesrv) as consumer:
        queues = consumer.queues(topic)
        for number in range(rounds + 1):
            for way in WAYS:
                wanted = sum(map(consumer.max_offset, queues)) + rows
                before, began = server.cpu_seconds(), time.perf_counter()
                _write(frame, server.namesrv, topic, way)
                job = time.perf_counter() - began
                while way != NOTHING and sum(map(consumer.max_offset, queues)) < wanted:
                    time.sleep(0.01)
                whole = time.perf_counter() - began
                assert way == NOTHING or sum(map(consumer.max_offset, queues)) == wanted
                if number:
                    seen[way].append(rows / whole / 1000)
                    saved[way].append(rows / job / 1000)
                    cpu[way] = (server.cpu_seconds() - before) / rows * 1e6
    _, size, count = topic.split("-")
    for way in WAYS:
        rates = [statistics.median(found) for found in (seen[way], saved[way])]
        print(f"| {size} | {count} | {way} | {rates[0]:.0f} | {rates[1]:.0f} | {cpu[way]:.1f} |", flush=True)


def _write(frame: DataFrame, namesrv: str, topic: str, way: str) -> None:
    if way == NOTHING:
        frame.write.format("noop").mode("overwrite").save()
        return
    writer = frame.write.format("rocketmq").option("namesrvAddr", namesrv).option("topic", topic)
    writer.option("delivery", way).mode("append").save()


if __name__ == "__main__":
    main()
