"""What the driver of the cluster test runs, in a process of its own: archive, audit, and queries whose executor dies.

Arguments: master, name server, topic, topic to copy to, folder. Prints one JSON object.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyromq.spark.jobs.settings import JOBS, build, run

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
}


def deadly(frame, marker):
    """Return the same rows; the first task of the second micro-batch that gave all its rows kills its executor."""

    def kill(batches):
        import os
        import signal
        from pathlib import Path

        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().getLocalProperty("streaming.sql.batchId") == "1":
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return
            # A worker is a child of PySpark's daemon, which is a child of the executor.
            executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)

    return frame.mapInArrow(kill, frame.schema)


def main(master: str, namesrv: str, topic: str, copy: str, folder: str) -> None:
    """Run all on the cluster's executors, one after the other."""

    def job(name, **values):
        session = {"namesrv": namesrv, "master": master, "conf": [f"{key}={value}" for key, value in SETTINGS.items()]}
        return run(name, build(JOBS[name], session | values), lambda _: None)

    def over_a_death(name, form, columns, **options):
        source = {"namesrvAddr": namesrv, "subscribe": topic, "startingOffsets": "earliest", "minPartitions": "4"}
        rows = spark.readStream.format("rocketmq").options(**source, maxOffsetsPerTrigger="1000").load()
        marker = place / f"{name}.died"
        writer = deadly(rows, str(marker)).select(*columns).writeStream.format(form).options(**options)
        query = writer.option("checkpointLocation", str(place / name)).trigger(availableNow=True).start()
        query.awaitTermination()
        assert marker.exists(), "no executor has died"

    place = Path(folder)
    lake, checkpoint = str(place / "lake"), str(place / "checkpoint")
    job("archive", to=lake, topics=topic, checkpoint=checkpoint, once=True, batch_rows=500, option=["minPartitions=4"])
    audit = job("audit", archive=lake, complete=True)
    spark = SparkSession.getActiveSession()
    assert spark is not None
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # without the driver
    sink = {"namesrvAddr": namesrv, "topic": copy, "delivery": "exactlyOnce", "sendBatchBytes": "1k"}
    over_a_death("copying", "rocketmq", ["body"], **sink)
    over_a_death("archiving", "rocketmq-archive", ["*"], path=str(place / "other-lake"))
    read = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=copy, minPartitions="4").load()
    found = {"executors": executors, "failed": audit.failed, "notes": audit.notes}
    for name, frame in {"copied": read, "archived": spark.read.parquet(str(place / "other-lake"))}.items():
        numbers = F.collect_list(F.col("body").cast("string").cast("int"))
        found[name] = frame.agg(F.sort_array(numbers)).first()[0]
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
