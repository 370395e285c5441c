"""What the driver of the cluster test runs, in a process of its own: archive, audit, and replay into another topic.

Arguments: master, name server, topic, topic to replay to, folder. Prints one JSON object.
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
    "spark.log.level": "ERROR",
}


def main(master: str, namesrv: str, topic: str, copy: str, folder: str) -> None:
    """Run the jobs one after the other on the cluster's executors."""

    def job(name: str, **values: object) -> object:
        session = {"namesrv": namesrv, "master": master, "conf": [f"{key}={value}" for key, value in SETTINGS.items()]}
        return run(name, build(JOBS[name], session | values), lambda _: None)

    lake = str(Path(folder) / "lake")
    checkpoint = str(Path(folder) / "checkpoint")
    job("archive", to=lake, topics=topic, checkpoint=checkpoint, once=True, batch_rows=500, option=["minPartitions=4"])
    audit = job("audit", archive=lake, complete=True)
    job("replay", archive=lake, topic=topic, to_topic=copy, job="on-a-cluster", delivery="exactlyOnce")
    spark = SparkSession.getActiveSession()
    assert spark is not None
    read = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=copy, minPartitions="4").load()
    bodies = read.agg(F.sort_array(F.collect_list(F.col("body").cast("string").cast("int")))).first()[0]
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # without the driver
    print(json.dumps({"executors": executors, "failed": audit.failed, "notes": audit.notes, "bodies": bodies}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
