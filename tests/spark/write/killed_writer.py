"""A driver that copies one topic into another exactly once and is killed at a given point; run by test_writer_kills.

python killed_writer.py NAMESRV SOURCE TOPIC CHECKPOINT POINT BATCH

At POINT of micro-batch BATCH the Java process and this one get SIGKILL: `in a task`, `before the commit`, `half way
through the commit` (the first broker has decided, the second was not told), `after the commit`, or `never`.
"""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from pyromq.client.producer.batch_transactions import AsyncBatchTransactions
from pyromq.spark.source import RocketMQDataSource
from pyromq.spark.write.writer import RocketMQStreamWriter


class KilledWriter(RocketMQStreamWriter):
    def __init__(self, options, point, batch, pids):
        super().__init__(options)
        self._point, self._batch, self._pids = point, batch, pids

    def write(self, iterator):
        batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
        written = super().write(iterator)
        if batch == self._batch and TaskContext.get().partitionId() == 0:
            self._kill("in a task")
        return written

    def commit(self, messages, batchId):
        if batchId == self._batch:
            self._kill("before the commit")
            self._kill_before_the_second_broker_is_told()
        super().commit(messages, batchId)
        if batchId == self._batch:
            self._kill("after the commit")

    def _kill_before_the_second_broker_is_told(self):
        tell, told = AsyncBatchTransactions._commit_at, []

        def counted(client, broker, *arguments):
            told.append(broker)
            if len(told) == 2:
                self._kill("half way through the commit")
            return tell(client, broker, *arguments)

        AsyncBatchTransactions._commit_at = counted

    def _kill(self, point):
        if point == self._point:
            for pid in json.loads(Path(self._pids).read_text()):
                os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class KilledSource(RocketMQDataSource):
    @classmethod
    def name(cls):
        return "killed"

    def streamWriter(self, schema, overwrite):
        point, batch, pids = (self.options.pop(name) for name in ("point", "batch", "pids"))
        return KilledWriter(self._sink_options(schema, overwrite), point, int(batch), pids)


def main():
    namesrv, source, topic, checkpoint, point, batch = sys.argv[1:]
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]  # the workers know these classes by module
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "OFF").config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    pids = Path(checkpoint).with_suffix(".pids")
    pids.write_text(json.dumps([spark.sparkContext._gateway.proc.pid, os.getpid()]))
    import killed_writer

    spark.dataSource.register(killed_writer.KilledSource)
    reader = spark.readStream.format("rocketmq").options(namesrvAddr=namesrv, subscribe=source)
    rows = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=40, maxPartitions=2).load().select("body")
    writer = rows.writeStream.format("killed").options(namesrvAddr=namesrv, topic=topic, delivery="exactlyOnce")
    writer = writer.option("sendBatchBytes", "1k")  # so that both brokers get some of each batch
    writer = writer.options(point=point, batch=batch, pids=str(pids), checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
