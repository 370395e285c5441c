"""A driver that archives a topic and is killed at a given point; run by test_archive_kills.

python killed_archive.py NAMESRV TOPIC FOLDER POINT BATCH

At POINT of micro-batch BATCH the Java process and this one get SIGKILL: `in a task`, `before the commit`,
`half way through the commit`, `after the commit`, or `never`.
"""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from pyromq.spark.archive import tables as archive_tables
from pyromq.spark.archive.sink import ArchiveSink, ArchiveWriter


class KilledWriter(ArchiveWriter):
    """Kills the processes whose ids the file holds."""

    def __init__(self, writer, point, batch, pids):
        super().__init__(writer._location, writer._form, writer._schema)
        self._point, self._batch, self._pids = point, batch, pids

    def write(self, iterator):
        written = super().write(iterator)
        batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
        if batch == self._batch and TaskContext.get().partitionId() == 0:
            self._kill("in a task")
        return written

    def commit(self, messages, batchId):
        if batchId != self._batch:
            super().commit(messages, batchId)
            return
        self._kill("before the commit")
        if self._point == "half way through the commit":
            archive_tables.ParquetTable._publish = lambda table, page: self._kill(self._point)
        super().commit(messages, batchId)
        self._kill("after the commit")

    def _kill(self, point):
        if point == self._point:
            for pid in json.loads(Path(self._pids).read_text()):
                os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class KilledSink(ArchiveSink):
    """The archive's sink with three options more."""

    @classmethod
    def name(cls):
        return "killed-archive"

    def streamWriter(self, schema, overwrite):
        point, batch, pids = (self.options.pop(name) for name in ("point", "batch", "pids"))
        return KilledWriter(super().streamWriter(schema, overwrite), point, int(batch), pids)


def main():
    namesrv, topic, folder, point, batch = sys.argv[1:]
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "OFF").config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    pids = Path(folder) / "pids"
    pids.write_text(json.dumps([spark.sparkContext._gateway.proc.pid, os.getpid()]))
    import killed_archive

    spark.dataSource.register(killed_archive.KilledSink)
    source = {"namesrvAddr": namesrv, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    frame = spark.readStream.format("rocketmq").options(**source).load()
    writer = frame.writeStream.format("killed-archive").option("path", str(Path(folder) / "lake"))
    writer = writer.options(
        point=point, batch=batch, pids=str(pids), checkpointLocation=str(Path(folder) / "checkpoint")
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
