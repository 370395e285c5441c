"""What is put into the log, how it is counted, and what is told of what the store does not take."""

import pytest

from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.errors import MessageRefused, StoreNotWritable
from pyromq.message import StoredMessage
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.store.message_store import MessageStore

TOO_LONG = "x" * (MAX_PROPERTIES_SIZE + 1)


@pytest.fixture
def store(config, clock):
    store = MessageStore(config.store, clock, store_address=bytes(8))
    store.open()
    yield store
    store.close()


@pytest.fixture
def statistics(clock):
    return Statistics("c", clock)


@pytest.fixture
def put_message(store, statistics, config):
    return PutMessage(store, statistics)


def messages(*bodies, topic="orders"):
    return [StoredMessage(topic, body) for body in bodies]


def stored(store, topic="orders"):
    return [store.message_at(entry.log_offset).body for entry in store.entries(topic, 0, 0, 100)]


def counted(statistics):
    total = statistics.put_total
    return total.times, total.count, total.size


def test_a_message_is_counted_with_the_bytes_of_its_record(put_message, statistics, store):
    (message,) = messages(b"x")
    put_message.put(message)
    assert counted(statistics) == (1, 1, store.max_log_offset)


def test_messages_of_a_burst_are_counted_each(put_message, statistics, store):
    assert put_message.put_each(messages(b"a", b"b")) == [None, None]
    assert stored(store) == [b"a", b"b"]
    assert counted(statistics) == (2, 2, store.max_log_offset)


def test_a_burst_that_is_too_much_for_one_write_is_stored_all_the_same(put_message, statistics, store):
    bodies = [bytes([number]) * 400_000 for number in range(3)]
    assert put_message.put_each(messages(*bodies)) == [None] * 3
    assert stored(store) == bodies
    assert statistics.put_total.count == 3


def test_what_fits_no_record_costs_the_others_of_its_burst_nothing(put_message, statistics, store):
    burst = messages(b"a", b"b", b"c")
    burst[1].property_text = TOO_LONG
    first, second, third = put_message.put_each(burst)
    assert (first, third) == (None, None)
    assert isinstance(second, MessageRefused)
    assert stored(store) == [b"a", b"c"]
    assert statistics.put_total.count == 2


def test_when_the_disk_fills_amid_a_burst_the_first_messages_have_their_outcomes(put_message, statistics, store):
    burst = messages(b"a", b"b", b"c", b"d")
    burst[1].property_text = TOO_LONG
    append = store.append

    def append_until_full(message):
        if message is burst[3]:
            raise StoreNotWritable("the disk is full")
        return append(message)

    store.append = append_until_full
    first, second, third = put_message.put_each(burst)
    assert (first, third) == (None, None)
    assert isinstance(second, MessageRefused)
    assert second.__traceback__ is None  # its frames would hold the list of outcomes
    assert (stored(store), statistics.failed_puts) == ([b"a", b"c"], 1)
    with pytest.raises(StoreNotWritable):
        put_message.put_each([burst[3], burst[1]])


def test_a_batch_is_counted_as_one_put_without_the_records_around_it(put_message, statistics, store):
    batch = messages(b"a", b"b")
    put_message.put_batch(batch, before=messages(b"1", topic="notes"), behind=messages(b"2", topic="notes"))
    assert stored(store) == [b"a", b"b"]
    assert stored(store, "notes") == [b"1", b"2"]
    assert counted(statistics) == (1, 2, sum(message.size for message in batch))


def test_a_batch_is_stored_whole_or_not_at_all(put_message, statistics, store):
    batch = messages(b"a", b"b")
    batch[1].property_text = TOO_LONG
    with pytest.raises(MessageRefused):
        put_message.put_batch(batch)
    assert stored(store) == []
    assert counted(statistics) == (0, 0, 0)


def test_a_record_of_the_brokers_own_is_not_counted(put_message, statistics, store):
    put_message.put_record(messages(b"x")[0])
    assert stored(store) == [b"x"]
    assert counted(statistics) == (0, 0, 0)


def test_what_a_store_that_takes_nothing_was_given_is_counted_as_failed(put_message, statistics, store):
    store.close()
    with pytest.raises(StoreNotWritable):
        put_message.put(messages(b"x")[0])
    with pytest.raises(StoreNotWritable):
        put_message.put_record(messages(b"x")[0])
    with pytest.raises(StoreNotWritable):
        put_message.put_batch(messages(b"a", b"b"))
    with pytest.raises(StoreNotWritable):
        put_message.put_each(messages(b"a", b"b", b"c"))
    assert statistics.failed_puts == 1 + 1 + 2 + 3
    assert counted(statistics) == (0, 0, 0)


def test_what_no_record_can_hold_is_no_failure_of_the_store(put_message, statistics):
    with pytest.raises(MessageRefused):
        put_message.put(StoredMessage("orders", b"x", TOO_LONG))
    assert statistics.failed_puts == 0
