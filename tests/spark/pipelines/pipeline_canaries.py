"""What Declarative Pipelines do in one session, run by test_pipelines: the template's project, and defects of Spark.

python pipeline_canaries.py NAMESRV FOLDER

Prints one JSON object: what each function below, by its name, has found.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path

os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

from pyspark.errors import PySparkException
from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run
from pyspark.sql import SparkSession

from pyromq import Admin, Message, Producer
from pyromq.spark.pipeline_template import write_project

COUNT = 20
SPEC = """\
name: {name}
storage: file://{folder}/storage
catalog: spark_catalog
database: default
configuration: {{spark.sql.shuffle.partitions: "2"}}
libraries:
  - glob: {{include: transformations/**}}
"""
HEAD = "from pyspark import pipelines as dp\n\n"
STREAM = """\
spark.readStream.format("rocketmq").option("namesrvAddr", "{namesrv}").option("subscribe", "{topic}")\
.option("startingOffsets", "earliest").load().select("queueId", "body")"""


class Pipelines:
    """Projects, their topics and their runs."""

    def __init__(self, spark, namesrv, folder):
        self.namesrv = namesrv
        self._spark = spark
        self._folder = folder

    def send(self, topic):
        with Admin(self.namesrv) as admin, Producer("canaries", self.namesrv) as producer:
            admin.create_topic(topic, 2, replace=True)
            for number in range(COUNT):
                producer.send(Message(topic, b"%d" % number))

    def stream(self, topic):
        return STREAM.format(namesrv=self.namesrv, topic=topic)

    def project(self, name, text):
        folder = self._folder / name
        (folder / "transformations").mkdir(parents=True)
        (folder / "storage").mkdir()
        (folder / "spark-pipeline.yml").write_text(SPEC.format(name=name, folder=folder))
        (folder / "transformations" / f"{name}.py").write_text(HEAD + text)
        return folder

    def template(self, topic):
        write_project(self._folder / "template", topic=topic, namesrv=self.namesrv)
        return self._folder / "template"

    def run(self, folder, **refresh):
        """Run a project as `spark-pipelines run` does."""
        path = folder / "spark-pipeline.yml"
        spec = load_pipeline_spec(path)
        graph = create_dataflow_graph(
            self._spark, default_catalog=spec.catalog, default_database=spec.database, sql_conf=spec.configuration
        )
        registry = SparkConnectGraphElementRegistry(self._spark, graph)
        register_definitions(path, registry, spec, self._spark, graph)
        chosen = {"full_refresh": [], "full_refresh_all": False, "refresh": []} | refresh
        handle_pipeline_events(start_run(self._spark, graph, **chosen, dry=False, storage=spec.storage))

    def count(self, table):
        return self._spark.table(table).count()

    def error(self, folder, **refresh):
        try:
            self.run(folder, **refresh)
        except PySparkException as error:
            return str(error)
        return None


def the_template(pipelines):
    pipelines.send("Canary-1")
    folder = pipelines.template("Canary-1")
    pipelines.run(folder)
    pipelines.send("Canary-1")
    pipelines.run(folder, full_refresh_all=True)
    return pipelines.count("canary_1"), pipelines.count("canary_1_per_hour") > 0


def a_full_refresh_of_a_partitioned_table(pipelines):
    pipelines.send("parted")
    text = f'@dp.table(partition_cols=["queueId"])\ndef parted():\n    return {pipelines.stream("parted")}\n'
    folder = pipelines.project("parted", text)
    pipelines.run(folder)
    pipelines.send("parted")
    pipelines.run(folder)
    pipelines.run(folder, full_refresh=["parted"])
    pipelines.send("parted")
    pipelines.run(folder)
    return pipelines.count("parted")


def two_flows_into_one_table(pipelines):
    text = 'dp.create_streaming_table("both")\n'
    for topic in ("flow_a", "flow_b"):
        pipelines.send(topic)
        text += f'\n\n@dp.append_flow(target="both")\ndef {topic}():\n    return {pipelines.stream(topic)}\n'
    pipelines.run(pipelines.project("both", text))
    return pipelines.count("both")


def a_view_over_a_topic(pipelines):
    pipelines.send("viewed")
    batch = pipelines.stream("viewed").replace("readStream", "read")
    text = f"@dp.materialized_view\ndef viewed():\n    return {batch}\n"
    return pipelines.error(pipelines.project("viewed", text)) or pipelines.count("viewed")


def a_view_over_a_batch_source_of_rows(pipelines):
    text = """\
def source():
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        def read(self, partition):
            yield (1,)

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "canary-rows"

        def schema(self):
            return "n int"

        def reader(self, schema):
            return Reader()

    return Source


spark.dataSource.register(source())


@dp.materialized_view
def rows_viewed():
    return spark.read.format("canary-rows").load()
"""
    return pipelines.error(pipelines.project("rows_viewed", text))


def a_full_refresh_of_a_table_that_forbids_it(pipelines):
    pipelines.send("kept")
    forbids = '{"pipelines.reset.allowed": "false"}'
    text = f"@dp.table(table_properties={forbids})\ndef kept():\n    return {pipelines.stream('kept')}\n"
    folder = pipelines.project("kept", text)
    pipelines.run(folder)
    return pipelines.error(folder, full_refresh=["kept"])


ALL = (
    the_template,
    a_full_refresh_of_a_partitioned_table,
    two_flows_into_one_table,
    a_view_over_a_topic,
    a_view_over_a_batch_source_of_rows,
    a_full_refresh_of_a_table_that_forbids_it,
)


def main(namesrv, folder):
    os.chdir(folder)  # tables go below it
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.connect.serverStacktrace.enabled", "false").getOrCreate()
    pipelines = Pipelines(spark, namesrv, Path(folder))
    found = {}
    for canary in ALL:
        try:
            found[canary.__name__] = canary(pipelines)
        except PySparkException:
            found[canary.__name__] = traceback.format_exc()
    spark.stop()
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):
        result = main(*sys.argv[1:])
    print(json.dumps(result))
