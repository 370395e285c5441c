"""docs/spark-recipes.md: every recipe is run as it stands there, against a real broker."""

import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from pyromq import Message, Producer, PullConsumer
from pyromq.client.admin.messages.dead_letters import DeadLetter

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "spark-recipes.md").read_text()


def blocks(title, language="python"):
    (section,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


class Kitchen:
    """Runs recipes; `names` are what a recipe's code has defined."""

    def __init__(self, spark, producer, namesrv, folder):
        self.folder = folder
        self.names = {"spark": spark, "F": F, "servers": {"namesrvAddr": namesrv}, "place": str(folder)}
        self.names["__name__"] = "__main__"  # so that Spark sends its functions by value
        self._producer = producer
        self._namesrv = namesrv

    def cook(self, title):
        for code in blocks(title):
            exec(compile(code, title, "exec"), self.names)

    def send(self, topic, *bodies, **fields):
        for body in bodies:
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self._producer.send(Message(topic, body, **fields), ordering_key="one queue")

    def create(self, *topics):
        for topic in topics:
            self._producer.queues(topic)

    def rows(self, folder):
        return sorted(tuple(row.values()) for row in pq.read_table(self.folder / folder).to_pylist())

    def seen(self, topic):
        with PullConsumer("recipes", self._namesrv) as consumer:
            found = []
            for queue in consumer.queues(topic):
                offset = 0
                while offset < consumer.max_offset(queue):
                    result = consumer.pull(queue, offset, 32)
                    found += result.messages
                    offset = result.next_offset
        return found


@pytest.fixture(scope="module")
def producer(namesrv):
    with Producer("recipes", namesrv) as producer:
        yield producer


@pytest.fixture
def kitchen(spark, producer, namesrv, tmp_path):
    return Kitchen(spark, producer, namesrv, tmp_path)


def bodies(messages):
    return sorted(message.body.decode() for message in messages)


@pytest.mark.parametrize("title", re.findall(r"^## (.*)$", PAGE, re.MULTILINE))
def test_every_recipe_has_a_test(title):
    assert f'("{title}"' in Path(__file__).read_text()


def test_json_bodies(kitchen):
    kitchen.send("orders", {"id": 1, "customer": "ann", "amount": 200}, {"id": 2, "amount": 5}, b"no json")
    kitchen.cook("JSON bodies")
    assert sorted(row.id for row in kitchen.names["readable"].collect()) == [1, 2]
    assert [bytes(row.body) for row in kitchen.names["unreadable"].collect()] == [b"no json"]
    (large,) = kitchen.seen("large-orders")
    assert (json.loads(large.body), large.keys, large.tags) == ({"id": 1, "customer": "ann"}, ["1"], "large")


def test_typed_bodies(kitchen, namesrv):
    kitchen.send("payments", {"id": 1, "amount": 2}, {"id": 2, "amount": 0.5}, {"id": "three"}, keys="k", tags="t")
    kitchen.send("payments", b"\0", properties={"TOMBSTONE": "true"})
    kitchen.cook("Typed bodies")
    assert [tuple(row) for row in kitchen.names["sums"].collect()] == [("EUR", 2.5)]
    message, tombstone = sorted(kitchen.seen("%DLQ%billing"), key=lambda message: message.body, reverse=True)
    assert DeadLetter("billing", tombstone).reason == "the body is null"
    letter = DeadLetter("billing", message)
    assert (message.body, message.keys, message.tags) == (b'{"id": "three"}', ["k"], "t")
    assert letter.reason == "the body is no Payment: Expected `int`, got `str` - at `$.id`"
    assert letter.original_topic == "payments"


def test_a_backfill_counts_once(kitchen):
    kitchen.send("measures", b"a", b"b")
    kitchen.cook("Backfill")
    today = datetime.now(UTC).date()  # messages of a test that runs over midnight are of the day before
    day, next_day = today - timedelta(days=1), today + timedelta(days=1)
    for _ in range(2):
        kitchen.names["backfill"](day, next_day)
    assert bodies(kitchen.seen("measures-upper")) == ["A", "B"]


@pytest.mark.soak
def test_avro_bodies(kitchen):
    fastavro = pytest.importorskip("fastavro")

    def encoded(station, celsius):
        out = io.BytesIO()
        fields = [{"name": "station", "type": "string"}, {"name": "celsius", "type": "double"}]
        schema = {"type": "record", "name": "Reading", "fields": fields}
        fastavro.schemaless_writer(out, schema, {"station": station, "celsius": celsius})
        return out.getvalue()

    kitchen.send("readings", encoded("north", -3.5), encoded("south", 21.25))
    kitchen.cook("Avro bodies")
    found = kitchen.names["readings"].collect()
    assert sorted((row.station, row.celsius) for row in found) == [("north", -3.5), ("south", 21.25)]


@pytest.mark.soak
def test_protobuf_bodies(kitchen):
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="payment.proto", package="shop", syntax="proto3")
    payment = file.message_type.add(name="Payment")
    for number, name in enumerate(("order_id", "cents"), 1):
        payment.field.add(name=name, number=number, type="TYPE_INT64", label="LABEL_OPTIONAL")
    described = descriptor_pb2.FileDescriptorSet(file=[file])
    (kitchen.folder / "payment.desc").write_bytes(described.SerializeToString())
    kitchen.send("card-payments", bytes([8, 7, 16, 99]), bytes([8, 8, 16, 1]))  # field 1 is 7, field 2 is 99, and so on
    kitchen.cook("Protobuf bodies")
    assert sorted(map(tuple, kitchen.names["payments"].collect())) == [(7, 99), (8, 1)]


@pytest.mark.soak
def test_change_data_capture(kitchen):
    def change(op, number, name, version):
        return {"op": op, "id": number, "name": name, "version": version}

    created = [change("c", number, name, 1) for number, name in ((1, "ann"), (2, "bob"), (3, "cy"))]
    kitchen.send("customer-changes", *created, change("u", 1, "anna", 2), change("d", 2, None, 2))
    kitchen.cook("Change data capture")
    kitchen.send("customer-changes", change("d", 3, None, 2), change("u", 1, "anne", 3), change("c", 4, "di", 1))
    forget_newest_commit(kitchen.folder / "customers-checkpoint")  # so that the first batch is repeated
    kitchen.cook("Change data capture")
    found = kitchen.names["DeltaTable"](kitchen.names["table"]).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["name"], row["version"]) for row in found) == [(1, "anne", 3), (4, "di", 1)]


@pytest.mark.soak
def test_de_duplication(kitchen):
    frame = kitchen.names["spark"].createDataFrame([("1", "a"), ("1", "a"), ("2", "b")], "uniqKey string, body string")
    for _ in range(2):
        sink = kitchen.names["servers"] | {"topic": "clicks"}
        frame.write.format("rocketmq").options(**sink).mode("append").save()
    kitchen.cook("De-duplication")
    assert [click for _, click in kitchen.rows("clicks")] == ["a", "b"]


@pytest.mark.soak
def test_joins(kitchen):
    names = kitchen.names["spark"].createDataFrame([("c1", "Ann")], "customer string, name string")
    names.write.parquet(str(kitchen.folder / "names"))
    kitchen.send("purchases", {"id": 1, "customer": "c1"}, {"id": 2, "customer": "c2"})
    kitchen.send("receipts", {"purchase": 2, "cents": 500}, {"purchase": 3, "cents": 1})
    kitchen.cook("Joins")
    assert [(row[0], row[1], row[3]) for row in kitchen.rows("named")] == [("c1", 1, "Ann")]
    assert kitchen.rows("paid") == [(2, "c2", 500)]


@pytest.mark.soak
def test_delta_partitioned_by_day(kitchen):
    kitchen.send("visits", b"home", b"shop")
    kitchen.cook("Delta partitioned by day")
    forget_newest_commit(kitchen.folder / "visits-checkpoint")
    kitchen.send("visits", b"exit")
    kitchen.cook("Delta partitioned by day")
    table = kitchen.names["DeltaTable"](kitchen.names["table"])
    assert sorted(row["page"] for row in table.to_pyarrow_table().to_pylist()) == ["exit", "home", "shop"]
    assert table.metadata().partition_columns == ["day"]


@pytest.mark.soak
def test_upgrade_of_a_job(kitchen):
    kitchen.send("invoices", b"1", b"2")
    kitchen.cook("Upgrade of a job")
    kitchen.names["first_version"]()
    kitchen.send("invoices", b"3")
    kitchen.names["second_version"]()
    assert kitchen.rows("invoices-1") == [("1",), ("2",)]
    assert [row[0] for row in kitchen.rows("invoices-2")] == ["3"]


@pytest.mark.soak
def test_watermark_and_windows(kitchen):
    kitchen.create("rides-by-hour")
    times = ("08:05", "08:30", "09:15", "11:00")
    kitchen.send("rides", *({"at": f"2026-01-31T{time}:00Z", "city": "Bern"} for time in times))
    kitchen.cook("Watermark and windows")
    kitchen.send(
        "rides", {"at": "2026-01-31T13:00:00Z", "city": "Bern"}, {"at": "2026-01-31T08:00:00Z", "city": "Bern"}
    )
    kitchen.cook("Watermark and windows")
    found = {each["start"][11:13]: each["count"] for each in map(json.loads, bodies(kitchen.seen("rides-by-hour")))}
    assert found == {"08": 2, "09": 1, "11": 1}


@pytest.mark.soak
def test_update_and_complete_output(kitchen):
    kitchen.create("vote-counts")
    kitchen.send("votes", b"x", b"x", b"y")
    kitchen.cook("Update and complete output")
    kitchen.send("votes", b"x")
    kitchen.cook("Update and complete output")
    assert kitchen.rows("votes") == [("x", 3), ("y", 1)]
    changes = [tuple(json.loads(body).values()) for body in bodies(kitchen.seen("vote-counts"))]
    assert changes == [("x", 2), ("x", 3), ("y", 1)]


@pytest.mark.soak
def test_sql(kitchen, namesrv):
    spark = kitchen.names["spark"]
    kitchen.create("mails")
    kitchen.send("bookings", {"customer": "ann"}, tags="new")
    kitchen.send("bookings", {"customer": "bob"}, tags="old")
    (script,) = blocks("SQL", "sql")
    try:
        for statement in script.replace("127.0.0.1:9876", namesrv).split(";")[:-1]:
            spark.sql(statement)
        (mail,) = kitchen.seen("mails")
        assert (mail.keys, mail.tags) == (["ann"], "booked")
    finally:
        spark.sql("DROP TABLE IF EXISTS bookings")
        spark.sql("DROP TABLE IF EXISTS mails")


def forget_newest_commit(checkpoint):
    """Let Spark believe that its last batch was not committed."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    newest.unlink()
