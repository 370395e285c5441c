"""The jobs on a real session and real brokers."""

import asyncio
import json
import os
import shutil
import time
import uuid
from itertools import pairwise
from pathlib import Path

import pytest
from tests.spark.serving import cluster_in_thread
from tests.waiting import PATIENCE_SECONDS

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from pyromq import Admin, Message, Producer
from pyromq.client.consumer.push.listener import GiveUp
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.clock import SystemClock
from pyromq.errors import TopicNotFound, Unavailable, UsageError
from pyromq.message import MessageQueue
from pyromq.names import dead_letter_topic
from pyromq.net.channel import connect
from pyromq.remoting.bodies import BrokerRegistration, DataVersion, TopicConfig, TopicConfigTable, encode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import RegisterBroker
from pyromq.spark.jobs import metrics_job as metrics
from pyromq.spark.jobs import mirror_job as mirror
from pyromq.spark.jobs import runner as running
from pyromq.spark.jobs.runner import Totals
from pyromq.spark.jobs.settings import JOBS, build, run
from pyromq.spark.monitoring.query_checkpoint import describe, read_checkpoint, reset_to
from pyromq.spark.read.stream_offset import StreamOffset
from pyromq.testing import Cluster

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(namesrv):
    name = f"jobs-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin:
        admin.create_topic(name, 4)
    return name


@pytest.fixture(scope="module")
def producer(namesrv):
    with Producer("jobs-test", namesrv) as producer:
        yield producer


def send(producer, topic, numbers):
    places = [MessageQueue(topic, "broker-a", number) for number in range(4)]
    messages = [
        Message(topic, b"%d" % n, tags=f"t{n % 2}", keys=f"k{n % 4}", properties={"n": str(n)}) for n in numbers
    ]
    sent = zip(numbers, messages, strict=True)
    for future in [producer.send_soon(message, queue=places[n % 4]) for n, message in sent]:
        future.result()


def job(name, namesrv, **values):
    return run(name, build(JOBS[name], {"namesrv": namesrv} | values), lambda _: None)


def stream(topic, folder):
    return {"topics": topic, "checkpoint": str(folder / "checkpoint"), "once": True}


ARCHIVED = "jobs-archived"
WINDOWS = {"mode": "update", "window": "1 hour"}


@pytest.fixture(scope="module")
def archive(spark, namesrv, producer, tmp_path_factory):
    """A topic of 100 messages in an archive of three batches, beside its checkpoint."""
    folder = tmp_path_factory.mktemp("archive")
    with Admin(namesrv) as admin:
        admin.create_topic(ARCHIVED, 4)
    send(producer, ARCHIVED, range(100))
    summary = job("archive", namesrv, to=str(folder / "lake"), **stream(ARCHIVED, folder), batch_rows=40)
    assert summary.notes == ("100 messages in 3 batches",)
    return folder


@pytest.fixture
def archived(archive, tmp_path):
    """A copy of the archive; its checkpoint is beside it."""
    shutil.copytree(archive, tmp_path, dirs_exist_ok=True)
    return tmp_path / "lake"


def read(spark, namesrv, topic):
    return spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=topic).load()


def bodies(spark, namesrv, topic):
    return sorted(int(row.body) for row in read(spark, namesrv, topic).collect())


def forget_newest_commit(folder):
    """Let Spark believe that its last batch is not done."""
    newest = max((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    newest.unlink()


def files(archive):
    return sorted(archive.glob("topic=*/date=*/*.parquet"))


class TestArchiveAndAudit:
    def test_an_audit_of_what_is_nowhere_is_refused(self, namesrv, archived):
        with pytest.raises(UsageError, match=f"topic typo is neither in the archive {archived} nor at the brokers"):
            job("audit", namesrv, archive=str(archived), topics="typo")

    def audit(self, namesrv, archive, **values):
        summary = job("audit", namesrv, archive=str(archive), **values)
        wrong = {name: sum(row[name] for row in summary.rows) for name in ("lost", "repeated", "disordered", "behind")}
        return wrong, summary.failed

    def test_an_archive_has_each_message_once(self, spark, namesrv, archived):
        rows = spark.read.parquet(str(archived)).collect()
        assert sorted(int(row.body) for row in rows) == list(range(100))
        assert self.audit(namesrv, archived) == ({"lost": 0, "repeated": 0, "disordered": 0, "behind": 0}, False)

    def test_new_messages_are_behind_and_a_repeated_batch_changes_nothing(
        self, spark, namesrv, topic, producer, tmp_path
    ):
        archive = {"to": str(tmp_path / "lake"), **stream(topic, tmp_path)}
        send(producer, topic, range(20))
        job("archive", namesrv, **archive)
        send(producer, topic, range(20, 27))
        wrong = {"lost": 0, "repeated": 0, "disordered": 0, "behind": 7}
        assert self.audit(namesrv, archive["to"]) == (wrong, False)
        forget_newest_commit(tmp_path)
        job("archive", namesrv, **archive)
        assert self.audit(namesrv, archive["to"]) == (wrong | {"behind": 0}, False)
        assert spark.read.parquet(archive["to"]).count() == 27

    def test_what_is_lost_repeated_or_out_of_order_is_found(self, spark, namesrv, archived):
        first, second, third, *_ = files(archived)
        lost = spark.read.parquet(str(first)).count()
        first.unlink()
        repeated = spark.read.parquet(str(second)).count()
        shutil.copy(second, second.with_name("copy.parquet"))
        swapped = spark.read.parquet(str(third)).selectExpr(
            "* except (commitLogOffset)", "-commitLogOffset as commitLogOffset"
        )
        swapped.coalesce(1).write.parquet(str(archived / "swapped"))
        (written,) = (archived / "swapped").glob("*.parquet")
        written.rename(third)
        shutil.rmtree(archived / "swapped")
        wrong, failed = self.audit(namesrv, archived, complete=True)
        assert failed
        assert (wrong["lost"], wrong["repeated"]) == (lost, repeated)
        assert wrong["disordered"] > 0

    def test_a_broker_whose_rows_are_counted_must_be_there_or_be_retired(self, spark, namesrv, archived):
        first, *_ = files(archived)
        moved = spark.read.parquet(str(first)).withColumn("brokerName", F.lit("broker-z"))
        moved.coalesce(1).write.parquet(str(archived.parent / "moved"))
        (written,) = (archived.parent / "moved").glob("*.parquet")
        written.rename(first)
        with pytest.raises(
            Unavailable, match=r"broker broker-z is not registered .*rows that are counted come from it"
        ):
            self.audit(namesrv, archived, option=["deadlineMs=50"])
        with pytest.raises(Unavailable, match=r"broker broker-y is not registered .*requiredBrokers"):
            self.audit(namesrv, archived, option=["deadlineMs=50", "requiredBrokers=broker-y"])
        self.audit(namesrv, archived, option=["retiredBrokers=broker-z"])

    def test_an_archive_that_is_not_there_is_named(self, spark, namesrv, tmp_path):
        with pytest.raises(UsageError, match="there is no archive at"):
            job("audit", namesrv, archive=str(tmp_path / "nothing"))

    def test_delta_has_each_message_once_though_a_batch_is_repeated(self, spark, namesrv, topic, producer, tmp_path):
        pytest.importorskip("deltalake")
        delta = {"to": str(tmp_path / "delta"), "format": "delta"} | stream(topic, tmp_path)
        send(producer, topic, range(20))
        job("archive", namesrv, **delta, batch_rows=15)
        forget_newest_commit(tmp_path)
        send(producer, topic, range(20, 30))
        job("archive", namesrv, **delta)
        wrong, failed = self.audit(namesrv, tmp_path / "delta", format="delta", complete=True)
        assert (sum(wrong.values()), failed) == (0, False)

    def test_a_checkpoint_is_described_and_set_anew(self, spark, namesrv, archived, tmp_path):
        rows = describe(read_checkpoint(tmp_path / "checkpoint"), namesrv)
        assert [(row["done"], row["broker_max"], row["lag"]) for row in rows] == [(25, 25, 0)] * 4
        reset_to(tmp_path / "checkpoint", namesrv, json.dumps({ARCHIVED: {"broker-a": {"0": 20}}}))
        summary = job("archive", namesrv, to=str(tmp_path / "again"), **stream(ARCHIVED, tmp_path))
        assert [(row["queue"], row["read"]) for row in summary.rows] == [(0, 5), (1, 0), (2, 0), (3, 0)]


def test_a_setting_of_spark_that_the_session_does_not_have_is_refused(spark, namesrv, archived):
    audit = {"archive": str(archived), "option": ["deadlineMs=5s"]}
    job("audit", namesrv, conf=["spark.sql.shuffle.partitions=2"], **audit)
    for conf in ("spark.sql.shuffle.partitions=7", "spark.executor.memory=9g", "fs.s3a.secret.key=4711"):
        name, _, value = conf.partition("=")
        with pytest.raises(UsageError, match=f"setting conf has {name}, and a Spark session exists") as caught:
            job("audit", namesrv, conf=[conf], **audit)
        assert value not in str(caught.value)


class TestReplay:
    def test_archived_messages_are_sent_again_with_where_they_come_from(self, spark, namesrv, archived):
        values = {
            "archive": str(archived),
            "topic": ARCHIVED,
            "job": "again",
            "to_topic": f"{ARCHIVED}-again",
            "tag": "t1",
        }
        with Admin(namesrv) as admin:
            admin.create_topic(f"{ARCHIVED}-again", 4)
        assert job("replay", namesrv, dry_run=True, **values).notes == (
            f"50 messages would be sent to {ARCHIVED}-again",
        )
        again = f"{ARCHIVED}-again"
        sent = job("replay", namesrv, delivery="exactlyOnce", same_queues=True, **values)
        assert sent.notes == (f"50 messages sent to {again}",)
        repeated = job("replay", namesrv, delivery="exactlyOnce", same_queues=True, **values)
        assert repeated.notes == (f"0 messages sent to {again}: an earlier run of job again has sent them",)
        assert job("replay", namesrv, **(values | {"tag": "none"})).notes == (f"0 messages sent to {again}",)
        with pytest.raises(
            UsageError, match=f"setting topic is nosuch, which is not in the archive .*; it has {ARCHIVED}"
        ):
            job("replay", namesrv, **(values | {"topic": "nosuch"}))
        read = (
            spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=f"{ARCHIVED}-again").load().collect()
        )
        assert sorted(int(row.body) for row in read) == list(range(1, 100, 2))
        row = next(row for row in read if row.body == b"1")
        assert row.properties["ORIGIN"] == f"archive:{ARCHIVED}/broker-a/1/0"
        assert (row.queueId, row.tags, row.properties["n"]) == (1, "t1", "1")

    def test_a_repetition_that_sends_more_gives_each_message_its_id_again(self, spark, namesrv, archived, topic):
        values = {"archive": str(archived), "topic": ARCHIVED, "job": "again", "to_topic": topic}
        job("replay", namesrv, tag="t1", **values)
        job("replay", namesrv, **values)
        found = {(row.body, row.uniqKey) for row in read(spark, namesrv, topic).collect()}
        assert [len(set(column)) for column in zip(*found, strict=True)] == [100, 100]
        assert len(found) == 100


class TestRedrive:
    def die(self, namesrv, topic, group):
        async def consume():
            seen, done = 0, asyncio.Event()

            async def give_up(batch):
                nonlocal seen
                seen += 1
                if seen == 4:
                    done.set()
                raise GiveUp("no such order")

            consumer = AsyncConsumer(group, namesrv)
            consumer.subscribe(topic, give_up)
            async with consumer:
                await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)

        asyncio.run(consume())

    def test_dead_letters_go_back_once_and_are_parked_when_they_come_again(self, spark, namesrv, topic, producer):
        send(producer, topic, range(4))
        group = f"group-{topic}"
        self.die(namesrv, topic, group)
        summary = job("redrive", namesrv, group=group, job="one", reason="order")
        assert summary.rows == [{"destination": topic, "reason": "GiveUp: no such order", "messages": 4}]
        assert summary.notes == ("4 dead letters sent",)
        repeated = job("redrive", namesrv, group=group, job="one", reason="order")
        assert repeated.notes == ("0 dead letters sent: an earlier run of job one has sent them",)
        none = job("redrive", namesrv, group=group, job="two", reason="no such reason")
        assert none.notes == ("0 dead letters sent",)
        assert bodies(spark, namesrv, topic) == [0, 0, 1, 1, 2, 2, 3, 3]

    def test_a_group_without_dead_letters_is_named(self, namesrv):
        with pytest.raises(TopicNotFound, match=r"^group nobody has no dead letters: "):
            job("redrive", namesrv, group="nobody", job="one")

    def test_letters_that_were_damaged_when_they_were_made_are_refused(self, spark, namesrv, topic, producer):
        letters = dead_letter_topic(f"group-{topic}")
        with Admin(namesrv) as admin:
            admin.create_topic(letters, 1)
        producer.send(Message(letters, b"1"))
        producer.send(Message(letters, b"2", properties={"DAMAGED": "body does not match its checksum"}))
        summary = job("redrive", namesrv, group=f"group-{topic}", job=topic, to_topic=topic)
        assert (summary.failed, summary.rows) == (True, [{"destination": topic, "reason": None, "messages": 1}])
        assert "1 dead letter was damaged" in summary.notes[1]
        assert bodies(spark, namesrv, topic) == [1]


class TestMetrics:
    def test_windows_go_to_a_topic(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(40))
        target = f"{topic}-metrics"
        with Admin(namesrv) as admin:
            admin.create_topic(target, 1)
        job("metrics", namesrv, to_topic=target, **WINDOWS, **stream(topic, tmp_path))
        found = [json.loads(row.body) for row in read(spark, namesrv, target).collect()]
        assert {(each["tag"]) for each in found} == {"t0", "t1"}
        assert sum(each["messages"] for each in found) == 40

    @pytest.mark.soak
    def test_a_query_with_a_new_checkpoint_writes_its_windows(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(40))
        target = f"{topic}-metrics"
        with Admin(namesrv) as admin:
            admin.create_topic(target, 1)
        job("metrics", namesrv, to_topic=target, **WINDOWS, **stream(topic, tmp_path))
        windows = read(spark, namesrv, target).count()
        shutil.rmtree(tmp_path / "checkpoint")
        job("metrics", namesrv, to_topic=target, **WINDOWS, **stream(topic, tmp_path))
        assert read(spark, namesrv, target).count() == 2 * windows

    @pytest.mark.soak
    @pytest.mark.parametrize("checkpoint", ["deleted", "restored"])
    def test_a_folder_that_is_newer_than_the_checkpoint_is_refused(
        self, spark, namesrv, topic, producer, tmp_path, checkpoint
    ):
        """Spark's file sink would skip the batches, without a word."""
        metrics = {"to": str(tmp_path / "windows"), "window": "1 second", "late": "1 second", **stream(topic, tmp_path)}
        for number in range(2):
            send(producer, topic, range(8))
            job("metrics", namesrv, **metrics)
            if number == 0:
                shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
        job("metrics", namesrv, **metrics)
        shutil.rmtree(tmp_path / "checkpoint")
        if checkpoint == "restored":
            shutil.copytree(tmp_path / "backup", tmp_path / "checkpoint")
        with pytest.raises(
            UsageError,
            match=r"has the windows of batches up to \d, and the newest batch of checkpoint .* is (\d|none);",
        ):
            job("metrics", namesrv, **metrics)
        job("metrics", namesrv, **metrics | {"to": str(tmp_path / "others")})

    @pytest.mark.soak
    def test_windows_go_to_prometheus(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(40))
        text = tmp_path / "windows.prom"
        job("metrics", namesrv, to_prometheus=str(text), **WINDOWS, **stream(topic, tmp_path))
        assert f'pyromq_window_messages{{topic="{topic}",tag="t0"}} 20' in text.read_text()

    def test_a_window_is_written_once_when_it_is_complete_and_late_messages_are_told(
        self, spark, namesrv, topic, tmp_path
    ):
        """Messages from files: the times of those from a broker cannot be chosen."""
        # What is late is known from the times of the micro-batch before the last.
        minutes = (["00:10"] * 10, ["10:00"], ["10:10"], ["00:20", "00:30"], ["20:00"])
        (tmp_path / "in").mkdir()
        written = time.time() - 60
        for number, times in enumerate(minutes):
            lines = [json.dumps({"topic": "t", "body": "eA==", "bornTimestamp": t, "storeTimestamp": t}) for t in times]
            file = tmp_path / "in" / f"{number}.json"
            file.write_text("\n".join(lines))
            os.utime(file, (written + number, written + number))  # Spark takes them in this order
        windows = {"window": "1 minute", "late": "1 minute", "to_topic": topic}
        settings = build(JOBS["metrics"], {"namesrv": namesrv, **windows, **stream(topic, tmp_path)})
        schema = "topic string, tags string, body binary, bornTimestamp string, storeTimestamp string"
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        for name in ("bornTimestamp", "storeTimestamp"):
            frame = frame.withColumn(name, F.to_timestamp(F.concat(F.lit("2026-01-31 12:"), name)))
        writer = metrics._writer(metrics.windows(frame, settings), settings).outputMode("append")
        query = writer.option("checkpointLocation", settings.stream.checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        totals = Totals(StreamOffset({}))
        reports = [json.loads(each.json) | {"sources": [{}]} for each in query.recentProgress]
        totals.note(map(json.dumps, reports))
        read = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=topic).load().collect()
        found = [json.loads(row.body) for row in read]
        assert sorted((each["start"][14:16], each["messages"]) for each in found) == [("00", 10), ("10", 2)]
        assert totals.summary().notes[-1].startswith("1 partial count")

    def test_one_destination_is_needed(self, namesrv, topic, tmp_path):
        with pytest.raises(UsageError, match="give exactly one of the settings to_topic, to and to_prometheus"):
            job("metrics", namesrv, **stream(topic, tmp_path))


@pytest.fixture(scope="module")
def two_brokers():
    with cluster_in_thread(2) as namesrv:
        yield namesrv


@pytest.mark.parametrize("names", ["the same", "others"])
def test_copies_of_a_queue_stay_together_at_two_brokers(spark, namesrv, two_brokers, topic, tmp_path, names):
    places = [MessageQueue(topic, broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]
    with Admin(two_brokers) as admin:
        admin.create_topic(topic, 4)
        admin.create_topic(f"{topic}-copy", 4)
    with Producer("jobs-test-2", two_brokers) as producer:
        for number in range(40):
            producer.send(Message(topic, b"%d" % number), queue=places[number % 8])
    target = namesrv if names == "others" else two_brokers
    with Admin(namesrv) as admin:
        admin.create_topic(f"{topic}-copy", 4)
    job("mirror", two_brokers, to_namesrv=target, to_topic=f"{topic}-copy", **stream(topic, tmp_path))
    found = {}
    for row in read(spark, target, f"{topic}-copy").collect():
        at = MessageQueue(topic, row.brokerName, row.queueId)
        found.setdefault(places[int(row.body) % 8], set()).add(at)
    assert found == {
        place: {place._replace(broker_name="broker-a") if names == "others" else place} for place in places
    }


async def test_a_mirror_waits_for_a_broker_of_the_target_that_left(namesrv, tmp_path):
    async with Cluster(2) as target:
        async with await target.admin() as admin:
            await admin.create_topic("orders", 1)
        await target.stop_broker(1)
        settings = build(JOBS["mirror"], {"to_namesrv": target.namesrv, **stream("orders", tmp_path)})
        with pytest.raises(Unavailable, match=rf"broker-b is not registered at {target.namesrv}"):
            await asyncio.to_thread(mirror.queue_columns, settings, ["orders"])


def test_archived_messages_go_to_the_same_queues_of_two_brokers(spark, two_brokers, archived):
    with Admin(two_brokers) as admin:
        admin.create_topic("again", 4)
    values = {"archive": str(archived), "topic": ARCHIVED, "to_topic": "again", "job": "two"}
    job("replay", two_brokers, same_queues=True, **values)
    found = {(row.brokerName, row.queueId): row["count"] for row in counted(read(spark, two_brokers, "again"))}
    assert found == {("broker-a", number): 25 for number in range(4)}


def counted(frame):
    return frame.groupBy("brokerName", "queueId").count().collect()


def broker_that_left(namesrv, topic):
    """Register broker-x with this topic, and let its connection end."""

    async def come_and_go():
        channel = await connect(namesrv, Dispatcher(), SystemClock())
        table = TopicConfigTable(data_version=DataVersion(), topics={topic: TopicConfig(name=topic)})
        header = RegisterBroker(broker_name="broker-x", broker_address="127.0.0.1:1", cluster="x", broker_id=0)
        (await channel.call(header, encode_body(BrokerRegistration(topics=table)), timeout=5)).check()
        await channel.close()

    asyncio.run(come_and_go())


@pytest.mark.soak  # ten jobs; tests/spark/read/test_missing_brokers.py has what they all use
def test_jobs_that_end_fail_without_a_broker_that_left(spark, two_brokers, archived, tmp_path):
    topic, copy = f"left-{uuid.uuid4().hex[:8]}", f"copy-{uuid.uuid4().hex[:8]}"
    with Admin(two_brokers) as admin:
        admin.create_topic(topic, 1)
        admin.create_topic(copy, 1)
        admin.create_topic(dead_letter_topic(topic), 1)
    for each in (topic, dead_letter_topic(topic)):
        broker_that_left(two_brokers, each)
        jobs = {
            "archive": {"to": str(tmp_path / "new"), **stream(topic, tmp_path / "a")},
            "metrics": {"to_topic": copy, **WINDOWS, **stream(topic, tmp_path / "w")},
            "mirror": {"to_namesrv": two_brokers, "to_topic": copy, **stream(topic, tmp_path / "m")},
            "audit": {"archive": str(archived), "topics": topic},
        }
        if each != topic:
            jobs = {"redrive": {"group": topic, "dry_run": True}}
        for name, values in jobs.items():
            with pytest.raises(Exception, match=f"broker-x is not registered at .*had topic {each} when it left"):
                job(name, two_brokers, option=["deadlineMs=50"], **values)
            job(name, two_brokers, option=["deadlineMs=50", "retiredBrokers=broker-x"], **values)


def test_an_audit_of_a_mirror_fails_without_a_broker_that_left(spark, two_brokers):
    topic = f"left-{uuid.uuid4().hex[:8]}"
    with Admin(two_brokers) as admin:
        admin.create_topic(topic, 1)
    broker_that_left(two_brokers, topic)
    with pytest.raises(Exception, match="broker-x is not registered"):
        job("audit", two_brokers, mirror=topic, source_namesrv=two_brokers, option=["deadlineMs=50"])
    job("audit", two_brokers, mirror=topic, source_namesrv=two_brokers, option=["retiredBrokers=broker-x"])


class TestMirror:
    def test_copies_keep_queues_and_say_where_they_come_from(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(40))
        copy = f"{topic}-copy"
        with Admin(namesrv) as admin:
            admin.create_topic(copy, 4)
        mirror = {"to_namesrv": namesrv, "to_topic": copy}
        job("mirror", namesrv, **mirror, **stream(topic, tmp_path))
        send(producer, topic, range(40, 60))
        job("mirror", namesrv, **mirror, **stream(topic, tmp_path))
        assert bodies(spark, namesrv, copy) == list(range(60))
        summary = job("audit", namesrv, mirror=copy, source_namesrv=namesrv)
        assert not summary.failed
        assert [(row["topic"], row["rows"]) for row in summary.rows] == [(topic, 15)] * 4

    @pytest.mark.soak
    def test_copies_are_copied_again_with_the_time_of_the_first(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(8))
        chain = [topic, f"{topic}-2", f"{topic}-3"]
        with Admin(namesrv) as admin:
            for copy in chain[1:]:
                admin.create_topic(copy, 4)
        for number, (source, copy) in enumerate(pairwise(chain)):
            mirror = {"to_namesrv": namesrv, "to_topic": copy, "cluster": f"c{number}", "to_cluster": f"c{number + 1}"}
            job("mirror", namesrv, **mirror, **stream(source, tmp_path / copy))
        assert bodies(spark, namesrv, chain[-1]) == list(range(8))
        born = "coalesce(cast(properties['BORN_TIMESTAMP'] as bigint), unix_millis(bornTimestamp)) as born"
        first, last = (
            sorted(read(spark, namesrv, each).selectExpr(born, "cast(body as string)").collect()) for each in chain[::2]
        )
        assert first == last

    def test_a_topic_that_the_target_cluster_lacks_is_named_with_the_cluster(self, namesrv, topic, tmp_path):
        mirror = {"to_namesrv": namesrv, "to_topic": f"{topic}-none"}
        with pytest.raises(
            TopicNotFound, match=f"the target cluster, {namesrv}: .*{topic}-none; create the topic there"
        ):
            job("mirror", namesrv, **mirror, **stream(topic, tmp_path))

    def test_offsets_of_an_unknown_group_are_not_carried_over(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(8))
        mirror = {"to_namesrv": namesrv, "to_topic": f"{topic}-copy", "groups": "nobody"}
        with Admin(namesrv) as admin:
            admin.create_topic(f"{topic}-copy", 4)
        with pytest.raises(UsageError, match=f"group nobody is not known at {namesrv}"):
            job("mirror", namesrv, **mirror, **stream(topic, tmp_path))
        with Admin(namesrv) as admin:  # the job failed before it copied anything
            assert [queue.max_offset for queue in admin.topic_status(f"{topic}-copy")] == [0] * 4

    def test_what_a_copy_lacks_repeats_or_has_in_another_order_is_found(self, spark, namesrv, topic, producer):
        send(producer, topic, range(16))  # offsets 0 to 3 of each queue
        copy = f"{topic}-copy"
        with Admin(namesrv) as admin:
            admin.create_topic(copy, 4)
        origins = {0: [0, 1, 2, 3], 1: [0, 1, 3], 2: [0, 1, 1, 2, 3], 3: [0, 2, 1, 3]}
        for queue, offsets in origins.items():
            for offset in offsets:
                origin = {"ORIGIN": f"a:{topic}/broker-a/{queue}/{offset}"}
                producer.send(Message(copy, b"x", properties=origin), queue=MessageQueue(copy, "broker-a", queue))
        summary = job("audit", namesrv, mirror=copy, source_namesrv=namesrv, complete=True)
        assert summary.failed
        found = [(row["lost"], row["repeated"], row["disordered"]) for row in summary.rows]
        assert found == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]

    @pytest.mark.soak
    def test_offsets_of_groups_are_carried_over(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(40))
        copy, group = f"{topic}-copy", f"group-{topic}"
        with Admin(namesrv) as admin:
            admin.create_topic(copy, 4)
            for number in range(4):
                admin.commit_offset(group, MessageQueue(topic, "broker-a", number), 3 + number)
        mirror = {"to_namesrv": namesrv, "to_topic": copy, "groups": group}
        summary = job("mirror", namesrv, **mirror, **stream(topic, tmp_path))
        assert summary.notes[-1] == f"offsets of 1 group of {topic} carried over to {copy}"
        with Admin(namesrv) as admin:
            assert [each.consumer_offset for each in admin.group_progress(group, copy)] == [3, 4, 5, 6]

    @pytest.mark.soak
    def test_copies_are_not_mirrored_back(self, spark, namesrv, topic, producer, tmp_path):
        send(producer, topic, range(8))
        there, back = f"{topic}-there", f"{topic}-back"
        with Admin(namesrv) as admin:
            admin.create_topic(there, 4)
            admin.create_topic(back, 4)
        job("mirror", namesrv, to_namesrv=namesrv, to_topic=there, **stream(topic, tmp_path))
        turned = {"cluster": "b", "to_cluster": "a", "to_namesrv": namesrv, "to_topic": back}
        job("mirror", namesrv, **turned, **stream(there, tmp_path / "back"))
        assert bodies(spark, namesrv, back) == []


@pytest.mark.soak
def test_spark_has_no_listener_of_ours_to_call_when_python_has_ended(
    spark, namesrv, topic, producer, tmp_path, monkeypatch
):
    monkeypatch.setattr(running, "LOOK_SECONDS", 0.01)
    send(producer, topic, range(10))
    seen, before = [], len(spark.streams._jsqm.listListeners())
    values = {"namesrv": namesrv, "to": str(tmp_path / "lake"), "lag_json": str(tmp_path / "lag.json")}
    settings = build(JOBS["archive"], values | stream(topic, tmp_path))
    (tmp_path / "lag.json").mkdir()  # it cannot be written
    with pytest.raises(IsADirectoryError):  # at the end: batches do not fail by it
        run("archive", settings, lambda rows: seen.append((rows, len(spark.streams._jsqm.listListeners()))))
    assert {listeners for _, listeners in seen} == {before}
    assert describe(read_checkpoint(tmp_path / "checkpoint"), namesrv)


def test_the_lag_of_a_job_is_in_files(spark, namesrv, topic, producer, tmp_path):
    send(producer, topic, range(10))
    lag = {"lag_json": str(tmp_path / "lag.json"), "lag_prometheus": str(tmp_path / "lag.prom")}
    job("archive", namesrv, to=str(tmp_path / "lake"), **lag, **stream(topic, tmp_path))
    (query,) = json.loads(Path(lag["lag_json"]).read_text())
    assert (query["query"], query["messages"], len(query["queues"])) == ("archive", 0, 4)
    assert (
        f'pyromq_spark_offset{{query="archive",topic="{topic}",broker="broker-a",queue="0"}} 3'
        in Path(lag["lag_prometheus"]).read_text()
    )
