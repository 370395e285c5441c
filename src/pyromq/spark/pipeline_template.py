"""Writes the project of `pyromq spark init`: Spark Declarative Pipelines over topics. No Spark here.

The project avoids four causes of lost rows in Spark 4.3. An in-memory catalog forgets tables between runs. A full
refresh empties a table whose messages brokers have deleted. Two flows into one table lose rows. A full refresh of a
partitioned table loses later messages.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from pyromq.errors import UsageError

SPEC = """\
name: {name}
storage: file://{folder}/storage   # checkpoints; a place that all nodes see, on a cluster
catalog: spark_catalog
database: default
configuration:
  spark.sql.shuffle.partitions: "2"
libraries:
  - glob: {{include: transformations/**}}
"""

MESSAGES = '''\
"""Topic {topic} into a table, message by message."""

from pyspark import pipelines as dp

# Brokers delete messages after some days, this table keeps them: a full refresh must not empty it.
# One flow into a table, since two of them lose rows silently: read several topics with `subscribe` or a union.
# No partition_cols: a full refresh of a partitioned table loses later messages.


@dp.table(table_properties={{"pipelines.reset.allowed": "false"}})
def {table}():
    return (
        spark.readStream.format("rocketmq")  # noqa: F821  Spark defines `spark`
        .option("namesrvAddr", "{namesrv}")
        .option("subscribe", "{topic}")
        .option("startingOffsets", "earliest")
        .option("group", "pipeline-{name}")
        .option("maxOffsetsPerTrigger", "1000000")
        .load()
    )
'''

PER_HOUR = '''\
"""Messages by hour and tag. A materialized view is computed again in every run, so it reads the table."""

from pyspark import pipelines as dp
from pyspark.sql import functions as F


@dp.materialized_view
def {table}_per_hour():
    hour = F.date_trunc("hour", "storeTimestamp").alias("hour")
    return spark.read.table("{table}").groupBy(hour, "tags").count()  # noqa: F821
'''

RUN = """\
#!/bin/sh
# A run processes all present messages and ends. The catalog must outlive it: Hive's, in this folder; one run at a time.
# The environment that wrote this project is first in PATH: it has spark-pipelines, and python3 for Spark's workers.
PATH={programs}:$PATH
export PATH
if ! command -v spark-pipelines > /dev/null; then
    echo "spark-pipelines is not on the PATH: pip install 'pyromq[spark]', or activate its environment" >&2
    exit 1
fi
cd "$(dirname "$0")" && exec spark-pipelines run --conf spark.sql.catalogImplementation=hive "$@"
"""


def write_project(folder: Path, *, topic: str, namesrv: str) -> list[Path]:
    """Write the files of a pipeline project into a new folder; return their paths.

    Raises `UsageError` if the folder exists.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name")
    folder = folder.absolute()
    table = "".join(character if character.isalnum() else "_" for character in topic).lower()
    values = {"name": folder.name, "folder": folder, "topic": topic, "namesrv": namesrv, "table": table}
    files = {
        folder / "spark-pipeline.yml": SPEC,
        folder / "transformations" / f"{table}.py": MESSAGES,
        folder / "transformations" / f"{table}_per_hour.py": PER_HOUR,
    }
    (folder / "transformations").mkdir(parents=True)
    (folder / "storage").mkdir()
    for path, template in files.items():
        path.write_text(template.format(**values), encoding="utf-8")
    run = folder / "run"
    run.write_text(RUN.format(programs=shlex.quote(str(Path(sys.executable).parent))), encoding="utf-8", newline="\n")
    run.chmod(0o755)
    return [*files, run]
