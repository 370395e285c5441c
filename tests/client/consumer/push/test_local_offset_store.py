"""Offset files of broadcast consumers: merged, repaired, read as Java wrote them; and where a consumer goes on."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.group_offsets import LocalOffsetStore, OffsetFile
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.errors import StoreCorrupt, StoreError
from pyromq.message import Message, MessageQueue

# Written by LocalFileOffsetStore of RocketMQ 4.9.8.
JAVA_FILE = Path(__file__).parents[3] / "golden" / "offsets" / "java-4.9.8.json"
A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)

queues = st.builds(MessageQueue, st.from_regex(r"[A-Za-z0-9_%-]+", fullmatch=True), st.text(), st.integers(0, 1 << 16))


def offset_file(folder):
    return OffsetFile(folder, "10.0.0.1@DEFAULT", "billing")


def test_without_a_file_nothing_is_stored(tmp_path):
    assert offset_file(tmp_path).load() == {}


def test_the_file_lies_below_client_id_and_group_with_its_queues_as_keys(tmp_path):
    offset_file(tmp_path).save({A: 42})

    written = (tmp_path / "10.0.0.1@DEFAULT" / "billing" / "offsets.json").read_text()
    assert written.startswith('{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42},"checksum":')


def test_the_content_before_stays_as_bak(tmp_path):
    file = offset_file(tmp_path)
    file.save({A: 1})
    before = file.path.read_bytes()

    file.save({A: 2})

    assert file.path.with_name("offsets.json.bak").read_bytes() == before


def test_saving_keeps_offsets_of_other_queues_that_another_process_stored(tmp_path):
    ours, others = offset_file(tmp_path), offset_file(tmp_path)
    ours.save({A: 1})
    others.save({B: 7})

    ours.save({A: 2})

    assert others.load() == {A: 2, B: 7}


def test_a_file_of_java_is_read(tmp_path):
    file = offset_file(tmp_path)
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(JAVA_FILE.read_bytes())

    assert file.load() == {A: 77, B: 2_147_483_657, MessageQueue("orders", "broker-a", 2): 4_294_967_314}


@pytest.mark.parametrize("damage", [b"", b'{"offsetTable":{{"brokerName":"brok', b"\0" * 80])
def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path, damage):
    offset_file(tmp_path).save({A: 1})
    offset_file(tmp_path).save({A: 2})
    offset_file(tmp_path).path.write_bytes(damage)

    assert offset_file(tmp_path).load() == {A: 1}


def test_without_one_good_file_the_error_names_both_and_what_to_do(tmp_path):
    file = offset_file(tmp_path)
    file.save({A: 1})
    file.path.write_bytes(b"{oops")

    with pytest.raises(StoreCorrupt, match=r"offsets\.json nor its \.bak holds offsets; restore one, or remove both"):
        file.load()


def test_saving_over_damaged_files_says_so_and_goes_on(tmp_path, caplog):
    file = offset_file(tmp_path)
    file.save({A: 1, B: 1})
    file.path.write_bytes(b"{oops")

    file.save({A: 2})

    assert offset_file(tmp_path).load() == {A: 2}
    assert "offsets of other queues are lost" in caplog.text


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "10.0.0.1@DEFAULT").write_text("in the way")

    with pytest.raises(StoreError, match=r"billing/offsets\.json"):
        offset_file(tmp_path).save({A: 1})


@pytest.mark.slow  # a file written and synced for each example
@given(st.dictionaries(queues, st.integers(0, (1 << 63) - 1)))
def test_what_is_saved_is_loaded(tmp_path_factory, offsets):
    folder = tmp_path_factory.mktemp("offsets")
    offset_file(folder).save(offsets)

    assert offset_file(folder).load() == offsets


def test_a_store_has_a_file_for_each_group_and_returns_what_is_asked_for(tmp_path):
    store = LocalOffsetStore(tmp_path, lambda: "10.0.0.1@DEFAULT")
    store.save("billing", {A: 42, B: 43})
    store.save("readers", {A: 1})

    assert store.load("billing", [A]) == {A: 42}
    assert store.load("readers", [A, B]) == {A: 1}
    assert offset_file(tmp_path).load() == {A: 42, B: 43}


async def test_a_broadcast_consumer_goes_on_by_its_file(cluster, tmp_path):
    producer = await cluster.producer()
    for number in range(8):
        await producer.send(Message("news", b"%d" % number))
    first = await heard(cluster, tmp_path, 8)
    await producer.send(Message("news", b"8"))

    assert first == [b"%d" % number for number in range(8)]
    assert await heard(cluster, tmp_path, 1) == [b"8"]
    assert sum(OffsetFile(tmp_path, "127.0.0.1@DEFAULT", "readers").load().values()) == 9
    admin = await cluster.admin()
    assert await admin.group_progress("readers") == []


async def heard(cluster, folder, count):
    """Return the bodies that a broadcast consumer got, once there are `count`."""
    got, complete = [], asyncio.Event()

    async def listen(messages):
        got.extend(message.body for message in messages)
        if len(got) >= count:
            complete.set()

    config = ConsumerConfig(broadcast=True, offsets_folder=folder, consume_from=ConsumeFrom.FIRST)
    async with AsyncConsumer("readers", cluster.namesrv, config=config) as consumer:
        consumer.subscribe("news", listen)
        await asyncio.wait_for(complete.wait(), PATIENCE_SECONDS)
    return sorted(got)
