"""Spark writing to a broker, at least once and exactly once, beside the same rows into nothing.

    python benchmarks/spark_writing.py                       # 1 KiB and 100 B over 4 and 64 queues
    python benchmarks/spark_writing.py --rows 1024:100000 --queues 4

One Spark session with two cores, name server and broker in one process, all on the same machine. A write counts until
every row can be seen by consumers: exactly once that is after the job itself has ended. Rates are medians of rounds in
which the ways of writing and the topics take turns, as the machine's memory is slower at its first use.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from pyromq import Admin, PullConsumer
from servers import Server, our_server

NOTHING = "(nothing)"
WAYS = ("atLeastOnce", "idempotent", "exactlyOnce", NOTHING)


def main() -> None:
    arguments = _arguments()
    sizes = dict(tuple(map(int, each.split(":"))) for each in arguments.rows.split(","))
    queues = list(map(int, arguments.queues.split(",")))
    with our_server(core=None) as server:
        spark = _session()
        print("| body | queues | delivery | thousand rows/s | : at least once | job alone | broker CPU us a row |")
        print("|---|---|---|---|---|---|---|")
        for size, rows in sizes.items():
            _compare(_frame(spark, rows, size), server, size, rows=rows, queues=queues, rounds=arguments.rounds)
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


@dataclass
class _Seen:
    """The rounds of one way of writing to one topic."""

    rates: list[float] = field(default_factory=list)  # thousand rows a second until consumers can see every row
    jobs: list[float] = field(default_factory=list)  # the same until the job has ended
    costs: list[float] = field(default_factory=list)  # the broker's processor time in us a row


def _compare(frame: DataFrame, server: Server, size: int, *, rows: int, queues: list[int], rounds: int) -> None:
    """Write to a topic of each number of queues, by turns: the first round is not counted."""
    assert server.namesrv is not None
    topics = {count: f"bench-{size}-{count}" for count in queues}
    with Admin(server.namesrv) as admin:
        for count, topic in topics.items():
            admin.create_topic(topic, count)
    seen = {(count, way): _Seen() for count in queues for way in WAYS}
    with PullConsumer("bench-spark", server.namesrv) as consumer:
        for number in range(rounds + 1):
            for (count, way), found in seen.items():
                _write_once(frame, server, consumer, topics[count], way, rows=rows, found=found if number else _Seen())
    for (count, way), found in seen.items():
        rate, job, cost = map(statistics.median, (found.rates, found.jobs, found.costs))
        of_plain = [a / b for a, b in zip(found.rates, seen[count, WAYS[0]].rates, strict=True)]
        ratios = f"**{statistics.median(of_plain):.2f}** ({min(of_plain):.2f} to {max(of_plain):.2f})"
        print(f"| {size} | {count} | {way} | {rate:.0f} | {ratios} | {job:.0f} | {cost:.1f} |", flush=True)


def _write_once(
    frame: DataFrame, server: Server, consumer: PullConsumer, topic: str, way: str, *, rows: int, found: _Seen
) -> None:
    assert server.namesrv is not None
    queues = consumer.queues(topic)
    wanted = sum(map(consumer.max_offset, queues)) + rows
    before, began = server.cpu_seconds(), time.perf_counter()
    _write(frame, server.namesrv, topic, way)
    job = time.perf_counter() - began
    while way != NOTHING and sum(map(consumer.max_offset, queues)) < wanted:
        time.sleep(0.01)
    whole = time.perf_counter() - began
    assert way == NOTHING or sum(map(consumer.max_offset, queues)) == wanted
    found.rates.append(rows / whole / 1000)
    found.jobs.append(rows / job / 1000)
    found.costs.append((server.cpu_seconds() - before) / rows * 1e6)


def _write(frame: DataFrame, namesrv: str, topic: str, way: str) -> None:
    if way == NOTHING:
        frame.write.format("noop").mode("overwrite").save()
        return
    writer = frame.write.format("rocketmq").option("namesrvAddr", namesrv).option("topic", topic)
    writer.option("delivery", way).mode("append").save()


if __name__ == "__main__":
    main()
