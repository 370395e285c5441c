"""Spark reading from a broker into nothing and into Parquet, beside the same rows out of memory.

    python benchmarks/spark.py                 # 1 KiB and 100 B over 4 and 64 queues
    python benchmarks/spark.py --rows 1024:100000 --queues 64 --reads noop

One Spark session with two cores, name server and broker in one process, all on the same machine. "memory" is a source
that gives one prepared Arrow batch again and again: what Spark itself can take from a Python source. Each is read with
all columns, and with those that Kafka's source has (KAFKA_LIKE). Rates are medians of rounds in which they take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyromq import Admin, Message, Producer
from pyromq.message import StoredMessage
from pyromq.record import encode
from pyromq.spark.read.record_columns import to_batch
from pyromq.spark.source import RocketMQDataSource
from servers import Server, our_server

TASKS = 2
BATCH_ROWS = 4096
SENT_AT_ONCE = 250
KAFKA_LIKE = "keys,body,topic,queueId,queueOffset,storeTimestamp"  # key, value, topic, partition, offset, timestamp


class MemorySource(DataSource):
    """`rows` rows with bodies of `size` bytes, from one batch that every task makes once."""

    @classmethod
    def name(cls) -> str:
        return "memory-ceiling"

    def schema(self) -> StructType:
        return RocketMQDataSource({"subscribe": "x", "columns": self.options.get("columns", "")}).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(int(self.options["rows"]), int(self.options["size"]), schema.names)


class MemoryReader(DataSourceReader):
    def __init__(self, rows: int, size: int, columns: list[str]) -> None:
        self._rows, self._size, self._columns = rows, size, columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        record = encode(StoredMessage("topic", b"x" * self._size, "KEYS\x01k1\x02UNIQ_KEY\x01" + "A" * 32))
        batch = to_batch(record * BATCH_ROWS, "broker-a", self._columns)
        for _ in range(partition.value // BATCH_ROWS):
            yield batch


def main() -> None:
    arguments = _arguments()
    sizes = dict(tuple(map(int, each.split(":"))) for each in arguments.rows.split(","))
    with our_server(core=None) as server:
        spark = open_session()
        spark.dataSource.register(MemorySource)
        print(f"| {'read':<8} | body | queues | system | thousand rows/s | broker CPU us a row |")
        print("|---|---|---|---|---|---|")
        for size, rows in sizes.items():
            for queues in map(int, arguments.queues.split(",")):
                topic = f"bench-{size}-{queues}"
                fill(server, topic, queues, rows=rows, body=b"x" * size)
                for read in arguments.reads.split(","):
                    _compare(spark, server, topic, read=read, rows=rows, size=size, rounds=arguments.rounds)
        spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1024:300000,100:1000000", help="size:rows,...")
    parser.add_argument("--queues", default="4,64")
    parser.add_argument("--reads", default="noop,parquet")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def open_session() -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{TASKS}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def fill(server: Server, topic: str, queues: int, *, rows: int, body: bytes) -> None:
    assert server.namesrv is not None
    with Admin(server.namesrv) as admin, Producer("bench-spark", server.namesrv) as producer:
        admin.create_topic(topic, queues)
        for _ in range(rows // SENT_AT_ONCE):
            producer.send_batch([Message(topic, body, keys="k1") for _ in range(SENT_AT_ONCE)])


def _compare(spark: SparkSession, server: Server, topic: str, *, read: str, rows: int, size: int, rounds: int) -> None:
    assert server.namesrv is not None
    source = {"namesrvAddr": server.namesrv, "subscribe": topic}
    memory = {"rows": str(rows), "size": str(size)}
    frames = {
        "rocketmq": lambda: spark.read.format("rocketmq").options(**source).load(),
        "rocketmq, as Kafka": lambda: spark.read.format("rocketmq").options(columns=KAFKA_LIKE, **source).load(),
        "memory": lambda: spark.read.format("memory-ceiling").options(**memory).load(),
        "memory, as Kafka": lambda: spark.read.format("memory-ceiling").options(columns=KAFKA_LIKE, **memory).load(),
    }
    rates: dict[str, list[float]] = {name: [] for name in frames}
    cpu: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, frame in frames.items():
            before, began = server.cpu_seconds(), time.perf_counter()
            _write(frame(), read)
            if number:
                rates[name].append(rows / (time.perf_counter() - began) / 1000)
                cpu[name] = (server.cpu_seconds() - before) / rows * 1e6
    queues = topic.rpartition("-")[2]
    for name, found in rates.items():
        print(
            f"| {read:<8} | {size} | {queues} | {name} | {statistics.median(found):.0f} | {cpu[name]:.1f} |", flush=True
        )


def _write(frame: DataFrame, kind: str) -> None:
    if kind == "noop":
        frame.write.format("noop").mode("overwrite").save()
        return
    folder = Path(tempfile.mkdtemp(prefix="pyromq-bench-"))
    try:
        frame.write.mode("overwrite").parquet(str(folder / "table"))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
