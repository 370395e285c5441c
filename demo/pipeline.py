"""The Spark part of the demo: a stream into an archive, windows written back to a topic exactly once, and an audit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyromq import Admin
from pyromq.spark.jobs.settings import JOBS, Summary, build, run

WINDOWS = "flights-windows"


class Pipeline:
    """One Spark session, and the jobs over one topic in it."""

    def __init__(self, namesrv: str, topic: str, folder: Path) -> None:
        self._namesrv, self._topic, self._folder = namesrv, topic, folder.resolve()
        self._spark = _session()

    def archive(self) -> int:
        """Stream what is there into the archive; return how many messages it has."""
        self._run("archive", to=self._archive, **self._stream("archive"))
        return self._spark.read.parquet(self._archive).count()

    def windows(self) -> int:
        """Count messages in windows of a second, written to a topic; return their sum as read back from there."""
        with Admin(self._namesrv) as admin:
            admin.create_topic(WINDOWS, 1)
        self._run("metrics", to_topic=WINDOWS, window="1 second", mode="update", **self._stream("windows"))
        source = {"namesrvAddr": self._namesrv, "subscribe": WINDOWS, "columns": "body"}
        rows = self._spark.read.format("rocketmq").options(**source).load().collect()
        return sum(json.loads(row.body)["messages"] for row in rows)

    def audit(self) -> Summary:
        """Hold the archive against the broker, queue by queue."""
        return self._run("audit", archive=self._archive, complete=True)

    def delays(self) -> Any:
        """Return delays by carrier and hour, from the archive, as a pandas frame."""
        flight = F.from_json(F.col("body").cast("string"), "carrier string, hour int, dep_delay double")
        archived = self._spark.read.parquet(self._archive)
        return (
            archived.select(flight.alias("f"))
            .where("f.dep_delay is not null")
            .groupBy("f.carrier", "f.hour")
            .agg(
                F.count("*").alias("flights"),
                F.avg("f.dep_delay").alias("mean_delay"),
                F.avg((F.col("f.dep_delay") > 15).cast("int")).alias("late_share"),
            )
            .toPandas()
        )

    def close(self) -> None:
        self._spark.stop()

    @property
    def _archive(self) -> str:
        return str(self._folder / "archive")

    def _stream(self, name: str) -> dict[str, Any]:
        return {"topics": self._topic, "checkpoint": str(self._folder / "checkpoints" / name), "once": True}

    def _run(self, job: str, **settings: Any) -> Summary:
        quiet: Callable[[int], None] = lambda count: None  # noqa: E731
        return run(job, build(JOBS[job], {"namesrv": self._namesrv} | settings), quiet)


def _session() -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return (
        SparkSession.builder.master("local[2]")
        .appName("pyromq demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
