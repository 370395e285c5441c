"""`CREATE TABLE ... USING rocketmq`: what Spark hands over, without Spark, and once with it."""

import uuid

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pyromq import Admin
from pyromq.errors import UsageError
from pyromq.spark.columns import SOURCE_COLUMNS
from pyromq.spark.options import BATCH
from pyromq.spark.source import RocketMQDataSource

READ = {"subscribe": "orders", "tagfilter": "new"}
WRITE = {"topic": "orders", "delivery": "exactlyOnce"}


def creating(options, **properties):
    """Options as Spark hands them over with CREATE TABLE: each twice, and its own properties."""
    return (
        {f"option.{name}": value for name, value in options.items()} | options | {"provider": "rocketmq"} | properties
    )


def schema_of(options, **properties):
    return RocketMQDataSource(creating(options, **properties)).schema()


def inserted(table):
    """The schema of rows that Spark has made fit a table."""
    first, *others = table.fields
    return StructType([StructField(first.name, StringType(), metadata=first.metadata), *others])


def test_properties_of_a_table_are_no_options():
    schema = schema_of(READ, owner="ann", comment="all orders", location="file:/x", path="file:/x", quality="gold")
    assert schema.names == list(SOURCE_COLUMNS)


def test_a_table_is_read_with_the_options_that_it_was_created_with():
    reader = RocketMQDataSource({}).reader(schema_of(READ | {"columns": "body,tags"}))
    assert (reader._options.subscribe, reader._options.tag_filter) == (("orders",), "new")
    assert reader._columns == ["body", "tags"]


def test_options_of_a_query_count_more_than_those_of_its_table():
    reader = RocketMQDataSource({"tagfilter": "paid"}).streamReader(schema_of(READ))
    assert (reader._options.subscribe, reader._options.tag_filter) == (("orders",), "paid")


def test_a_table_with_a_topic_is_one_to_write_to():
    schema = schema_of(WRITE)
    assert schema.names == ["body", "keys", "tags"]
    options = RocketMQDataSource({})._sink_options(inserted(schema), False, BATCH)
    assert (options.topic, options.delivery) == ("orders", "exactlyOnce")


def test_a_table_to_write_to_may_have_other_columns():
    schema = schema_of(WRITE | {"columns": "properties, body, queueId"})
    assert schema.names == ["body", "properties", "queueId"]
    assert RocketMQDataSource({})._sink_options(inserted(schema), False, BATCH).topic == "orders"


def test_a_column_that_is_named_twice_is_one_column():
    assert schema_of(WRITE | {"columns": "body,tags,body"}).names == ["body", "tags"]
    assert schema_of(READ | {"columns": "tags,body,tags"}).names == ["tags", "body"]


def test_columns_that_a_write_would_ignore_are_refused():
    schema = inserted(schema_of(WRITE | {"columns": "body,tags"}))
    RocketMQDataSource({"columns": "body,tags"})._sink_options(schema, False, BATCH)
    with pytest.raises(UsageError, match="option columns is 'body', and is for reads and for new tables"):
        RocketMQDataSource({"columns": "body"})._sink_options(schema, False, BATCH)
    rows = StructType([StructField("body", StringType())])
    with pytest.raises(UsageError, match="select the columns in the query"):
        RocketMQDataSource({"topic": "orders", "columns": "body"})._sink_options(rows, False, BATCH)


def test_columns_that_the_schema_overrides_are_refused():
    rows = StructType([StructField("body", BinaryType())])
    RocketMQDataSource({"subscribe": "orders", "columns": "body"}).reader(rows)
    with pytest.raises(UsageError, match="option columns is tags, and the schema has body"):
        RocketMQDataSource({"subscribe": "orders", "columns": "tags"}).reader(rows)
    table = schema_of(READ | {"columns": "body,tags"})
    with pytest.raises(UsageError, match="option columns is tags, and the schema has body,tags"):
        RocketMQDataSource({"columns": "tags"}).reader(table)


def test_no_rows_have_the_type_of_a_table_to_write_to():
    """Else Spark hands them over without the table's options."""
    assert schema_of(WRITE).fields[0].dataType.simpleString().startswith("varchar")


def test_rows_of_a_table_that_is_read_can_be_written_elsewhere():
    """Columns keep their metadata on the way."""
    rows = StructType(schema_of(READ | {"columns": "body"}).fields)
    assert RocketMQDataSource({"topic": "copy"})._sink_options(rows, False, BATCH).topic == "copy"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscrbe": "orders"}, "did you mean subscribe"),
        (WRITE | {"columns": "body,tag"}, "column 'tag' is unknown to the sink"),
        (WRITE | {"columns": "tags"}, "the sink needs column body"),
        (WRITE | {"columns": " "}, "option columns is ' ', which has no name"),
        (READ | {"columns": "body,tgas"}, "column 'tgas' does not exist; did you mean tags"),
        (WRITE | {"delivery": "once"}, "option delivery is 'once'"),
    ],
)
def test_mistakes_are_named_when_a_table_is_created(options, text):
    with pytest.raises(UsageError, match=text):
        schema_of(options)


def test_a_table_without_options_says_how_they_are_kept():
    with pytest.raises(UsageError, match=r"created without a list of columns .*WITH \(subscribe 'orders'\)"):
        RocketMQDataSource({}).reader(StructType([StructField("body", BinaryType())]))
    with pytest.raises(UsageError, match="options are missing: give subscribe"):
        RocketMQDataSource({}).reader(StructType([StructField("body", StringType()), *schema_of(WRITE).fields]))


@pytest.mark.spark
def test_tables_are_written_and_read_in_sql(spark, namesrv):
    topic = f"sql-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 2)
    shared = f"namesrvAddr '{namesrv}'"
    spark.sql(f"CREATE TABLE sent USING rocketmq OPTIONS ({shared}, topic '{topic}', delivery 'exactlyOnce')")
    spark.sql(f"CREATE TABLE orders USING rocketmq OPTIONS ({shared}, subscribe '{topic}', columns 'body,tags')")
    try:
        spark.sql("INSERT INTO sent (body, tags) SELECT string(id), if(id < 3, 'few', 'many') FROM range(9)")
        spark.sql("INSERT INTO sent SELECT '9' body, 'k' keys, 'many' tags")
        found = spark.sql("SELECT tags, count(*) n FROM orders GROUP BY tags ORDER BY tags").collect()
        assert [tuple(row) for row in found] == [("few", 3), ("many", 7)]
        assert spark.sql("SELECT * FROM orders WITH (tagFilter 'few')").count() == 3
    finally:
        spark.sql("DROP TABLE sent")
        spark.sql("DROP TABLE orders")
