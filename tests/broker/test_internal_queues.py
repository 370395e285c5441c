"""What a table that follows internal queues is given, in which order, and when its progress is saved."""

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.internal_queues import FlushedProgress, InternalQueues
from pyromq.message import StoredMessage
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore

GROUP = "CID_RMQ_SYS_TEST"
QUEUES = [("runs", 0), ("ledger", 0), ("ledger", 1)]


@pytest.fixture
def store(config, clock):
    store = MessageStore(config.store_config, clock, store_address=bytes(8))
    store.open()
    yield store
    store.close()


@pytest.fixture
def offsets(tmp_path):
    return ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json"))


@pytest.fixture
def queues(store, offsets):
    return InternalQueues(GROUP, QUEUES, store, offsets)


def put(store, topic, body, queue_id=0):
    store.append(StoredMessage(topic, body, queue_id=queue_id))


def test_records_of_several_queues_are_applied_in_log_order_and_then_as_they_are_appended(store, queues):
    applied = []
    put(store, "runs", b"1")
    put(store, "ledger", b"2", 1)
    put(store, "other", b"-")
    put(store, "ledger", b"3")
    put(store, "runs", b"4")
    queues.follow(lambda record: applied.append((record.topic, record.queue_id, record.stored_body)))
    assert applied == [("runs", 0, b"1"), ("ledger", 1, b"2"), ("ledger", 0, b"3"), ("runs", 0, b"4")]
    put(store, "other", b"-")
    put(store, "ledger", b"5", 1)
    assert applied[4:] == [("ledger", 1, b"5")]


def test_progress_is_saved_although_newer_progress_comes_all_the_time(store):
    progress = FlushedProgress(store)
    put(store, "runs", b"1")
    progress.hold(1)
    flushed = store.wait_flushed(store.max_log_offset)
    put(store, "runs", b"2")
    progress.hold(2)
    assert flushed.result(PATIENCE_SECONDS)
    assert progress.take() == 1


def test_records_before_the_stored_progress_are_not_applied_again(store, offsets, queues):
    for body in (b"1", b"2", b"3"):
        put(store, "runs", body)
    offsets.commit(GROUP, "runs", 0, 2)
    applied = []
    queues.follow(lambda record: applied.append(record.stored_body))
    assert applied == [b"3"]


@pytest.mark.parametrize(("committed", "first"), [(-5, 0), (99, 2)])
def test_a_progress_outside_of_its_queue_is_moved_into_it(store, offsets, queues, committed, first):
    put(store, "runs", b"1")
    put(store, "runs", b"2")
    offsets.commit(GROUP, "runs", 0, committed)
    assert queues.stored("runs") == first


def test_progress_is_committed_when_its_log_is_on_disk(store, offsets, queues):
    put(store, "runs", b"1")
    queues.save({("runs", 0): 1}, closed=False)
    queues.save({("runs", 0): 1}, closed=False)
    assert offsets.find(GROUP, "runs", 0) is None
    store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
    queues.save({("runs", 0): 1}, closed=False)
    assert offsets.find(GROUP, "runs", 0) == 1


def test_progress_is_committed_when_its_log_is_confirmed(store, offsets, queues):
    store.bound_reads()
    put(store, "runs", b"1")
    queues.save({("runs", 0): 1}, closed=False)
    store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
    queues.save({("runs", 0): 1}, closed=False)
    assert offsets.find(GROUP, "runs", 0) is None
    store.confirm(store.max_log_offset)
    queues.save({("runs", 0): 1}, closed=False)
    assert offsets.find(GROUP, "runs", 0) == 1
