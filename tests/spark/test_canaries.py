"""Defects of Spark 4.3.0 that we work around. One of these failing is good news: a workaround can go.

Classes are made inside functions, so that Spark's workers get them by value.
"""

import io
import json

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def counting_source():
    """A source of rows 0 to 19 that takes filters, as the documentation shows it."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo

    class Reader(DataSourceReader):
        def __init__(self):
            self.only = None

        def pushFilters(self, filters):
            for each in filters:
                if isinstance(each, EqualTo) and each.attribute == ("kind",):
                    self.only = each.value
                else:
                    yield each

        def read(self, partition):
            for number in range(20):
                if self.only is None or number % 4 == self.only:
                    yield number, number % 4

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "canary-filters"

        def schema(self):
            return "n int, kind int"

        def reader(self, schema):
            return Reader()

    return Source


def test_a_reader_that_was_given_a_filter_is_used_without_it_too(spark):
    """Why `pushFilters` is not implemented: the second query should see 20 rows."""
    spark.dataSource.register(counting_source())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("canary-filters").load()
        assert frame.where("kind = 1").count() == 5
        assert frame.count() == 5
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_tables_in_a_catalog_lose_their_options(spark):
    """Why `sql_tables` keeps options in the schema: the source should see option `rows`."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "canary-options"

        def schema(self):
            return "options string"

        def reader(self, schema):
            given = json.dumps({name: value for name, value in self.options.items() if name == "rows"})

            class Reader(DataSourceReader):
                def read(self, partition):
                    yield (given,)

            return Reader()

    spark.dataSource.register(Source)
    spark.sql("CREATE TEMPORARY VIEW canary_view USING `canary-options` OPTIONS (rows '7')")
    spark.sql("CREATE TABLE canary_table USING `canary-options` OPTIONS (rows '7')")
    try:
        assert spark.table("canary_view").first()[0] == '{"rows": "7"}'
        assert spark.table("canary_table").first()[0] == "{}"
    finally:
        spark.sql("DROP TABLE canary_table")


def ticking_stream(log, texts):
    """A stream whose offsets are the given texts' objects, one batch each; notes what is committed."""
    from pathlib import Path

    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def prepareForTriggerAvailableNow(self):
            pass

        def initialOffset(self):
            return json.loads(texts[0])

        def latestOffset(self, start, limit):
            known = [json.loads(text) for text in texts]
            place = max(number for number, each in enumerate(known) if each == start)
            return known[min(place + 1, len(known) - 1)]

        def partitions(self, start, end):
            return [InputPartition(0)]

        def read(self, partition):
            yield (1,)

        def commit(self, end):
            with Path(log).open("a") as file:
                file.write(json.dumps(end) + "\n")

        def stop(self):
            with Path(log).open("a") as file:
                file.write("stop\n")

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "canary-stream"

        def schema(self):
            return "n int"

        def streamReader(self, schema):
            return Reader()

    return Source


def batches(spark, tmp_path, texts):
    spark.dataSource.register(ticking_stream(str(tmp_path / "commits.log"), texts))
    query = (
        spark.readStream.format("canary-stream")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    return sum(1 for each in query.recentProgress if each.numInputRows)


def test_a_sources_commit_never_comes_for_the_last_batch_and_stop_not_at_all(spark, tmp_path):
    """Why offsets are stored at the brokers from `latestOffset`, and connections end with their process."""
    texts = ['{"n": 0}', '{"n": 1}', '{"n": 2}']
    assert batches(spark, tmp_path, texts) == 2
    assert (tmp_path / "commits.log").read_text().splitlines() == ['{"n": 1}']


def test_offsets_are_compared_as_text(spark, tmp_path):
    """Why offsets are written in a fixed order: the second is equal to the first, yet it is a batch."""
    assert batches(spark, tmp_path, ['{"a": 1, "b": 2}', '{"b": 2, "a": 1}']) >= 1


def test_a_writer_must_return_a_message_though_the_documentation_allows_none(spark):
    from pyspark.sql.datasource import DataSource, DataSourceWriter

    class Writer(DataSourceWriter):
        def write(self, iterator):
            return None

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "canary-none"

        def writer(self, schema, overwrite):
            return Writer()

    spark.dataSource.register(Source)
    with pytest.raises(Exception, match=r"DATA_SOURCE_TYPE_MISMATCH|WriterCommitMessage"):
        spark.range(3).write.format("canary-none").mode("append").save()


def test_one_broken_package_hides_all_sources(tmp_path, monkeypatch):
    """Why `pyspark_rocketmq` imports nothing that may be missing: this should find it beside the broken one."""
    from pyspark.sql.worker.lookup_data_sources import _main

    (tmp_path / "pyspark_broken.py").write_text("import a_package_that_is_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError):
        _main(io.BytesIO(), io.BytesIO())
