"""Pages of Spark: their examples are run as they stand there, against a real broker.

docs/spark.md, docs/spark-reading.md, docs/spark-streams.md and docs/spark-writing.md follow each other;
docs/spark-sql.md and docs/spark-jobs.md stand alone.
"""

import re
from pathlib import Path

import pytest
from tests.waiting import wait_until

pytest.importorskip("pyspark")

import pyarrow.dataset as ds

from pyromq import Message, Producer

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def examples(spark, namesrv, tmp_path, monkeypatch):
    """Return a page's examples in a language, with the broker's address, and folders below one of the test's.

    Spark's processes began before the test: they have another folder, and an environment without the address.
    """
    monkeypatch.chdir(tmp_path)

    def examples(name, language="python"):
        page = (DOCS / name).read_text().replace("127.0.0.1:9876", namesrv)
        page = page.replace('.format("rocketmq")', f'.format("rocketmq").option("namesrvAddr", "{namesrv}")')
        page = page.replace("/data/", f"{tmp_path}/").replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    return examples


@pytest.fixture(scope="module")
def messages(namesrv):
    """Two topics that the pages read."""
    with Producer("pages", namesrv) as producer:
        producer.send(Message("flights", b"UA1545", tags="EWR"))
        producer.send(Message("orders", b"a book", tags="paid", keys="order-1"))


@pytest.fixture
def bodies(spark, namesrv):
    """Return the bodies of a topic's messages, in order."""

    def bodies(topic):
        rows = spark.read.format("rocketmq").option("namesrvAddr", namesrv).option("subscribe", topic).load()
        return sorted(bytes(row.body).decode() for row in rows.select("body").collect())

    return bodies


def test_spark_reads_streams_and_writes(examples, messages, bodies, capsys):
    names = {"__name__": "__main__"}
    for page in ("spark.md", "spark-reading.md", "spark-streams.md", "spark-writing.md"):
        for example in examples(page):
            exec(example, names)
    names["copy"].processAllAvailable()
    names["copy"].stop()
    assert re.search(r"\|\s*EWR\|\s*UA1545\|", capsys.readouterr().out)
    assert bodies("orders-copy") == ["a book"]
    assert len(bodies("newsletters")) == 4
    assert bodies("mails") == ['{"id":"c-1","name":"Ann"}', '{"id":"c-2","name":"Bob"}']


def test_spark_has_tables_of_topics(spark, examples, messages, bodies, namesrv):
    with Producer("pages", namesrv) as producer:
        producer.queues("letters")
    spark.createDataFrame([("Ann",)], "name string").createOrReplaceTempView("customers")
    (script,) = examples("spark-sql.md", "sql")
    try:
        found = [spark.sql(statement).collect() for statement in script.split(";")[:-1]]
        assert [tuple(row) for row in found[1]] == [("paid", 1)]
        assert [tuple(row) for row in found[2]] == [("a book",)]
        assert bodies("letters") == ['{"name":"Ann"}']
    finally:
        for table in ("orders", "letters"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.catalog.dropTempView("customers")


@pytest.mark.soak
def test_a_job_is_a_function_and_a_listener_keeps_its_lag(spark, examples, messages, tmp_path):
    archive, listener = examples("spark-jobs.md")
    names = {"__name__": "__main__"}
    exec(listener.replace("LagListener(", "listener := LagListener("), names | {"spark": spark}, names)
    try:
        exec(archive, names)
        wait_until((tmp_path / "lag.prom").exists)
    finally:
        spark.streams.removeListener(names["listener"])
    rows = ds.dataset(tmp_path / "lake", format="parquet", ignore_prefixes=["_"]).to_table(columns=["body"])
    assert rows.to_pylist() == [{"body": b"a book"}]
