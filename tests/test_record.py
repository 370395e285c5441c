"""Records: each of their fields is read where it was written, whatever lies before it."""

import pytest

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage
from pyromq.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    BODY_AT,
    FIELD_AT,
    MAGIC,
    MAGIC_AT,
    MAGIC_BYTES,
    blank,
    encode,
    is_of_topic,
    log_offset_of,
    mark_addresses,
    place_of,
    prepared_offset_of,
    queue_offset_of,
    said_log_offset,
    store_ms_of,
    sys_flag_of,
    texts_at,
    unpack_size,
    unpack_size_and_magic,
)


@pytest.mark.parametrize("born", [8, 20])
@pytest.mark.parametrize("store", [8, 20])
@pytest.mark.parametrize("lead", [b"", b"something before"])
def test_each_field_of_a_record_is_read_where_it_lies(born, store, lead):
    message = StoredMessage("topic", b"the body", "a\x01b", queue_id=3, flag=9, born_ms=11, prepared_offset=-5)
    message.born_address, message.store_address = bytes(born), bytes(store)
    message.queue_offset, message.log_offset, message.store_ms = 1 << 40, 1 << 41, 1 << 42
    mark_addresses(message)
    content = encode(message)
    assert place_of(content) == (3, 1 << 40)
    assert sys_flag_of(content) == message.sys_flag
    assert store_ms_of(content) == 1 << 42
    assert prepared_offset_of(content) == -5
    assert is_of_topic(content, b"topic")
    stretch = memoryview(lead + content)
    at = len(lead)
    assert unpack_size(stretch, at) == (len(content),)
    assert unpack_size_and_magic(stretch, at) == (len(content), MAGIC)
    assert stretch[at + MAGIC_AT :][:4] == MAGIC_BYTES
    assert queue_offset_of(stretch, at) == 1 << 40
    assert log_offset_of(stretch, at) == said_log_offset(stretch, at) == 1 << 41
    topic_at, properties_at = texts_at(stretch, at)
    assert bytes(stretch[topic_at : properties_at - 2]) == b"topic"
    assert bytes(stretch[properties_at:]) == b"a\x01b"


def test_texts_of_a_record_that_is_cut_off_are_nowhere():
    message = StoredMessage("topic", bytes(500), "", born_address=bytes(8))
    message.store_address = bytes(8)
    content = encode(message)
    for end in (30, 80, 300):
        with pytest.raises(StoreCorrupt, match=r"record at byte 0 is broken: its lengths go beyond the end"):
            texts_at(content[:end])
    assert said_log_offset(content[:35], 0) == -1


def test_a_blank_fills_the_rest_of_a_segment():
    assert unpack_size_and_magic(blank(1234)) == (1234, BLANK_MAGIC)
    assert len(blank(8)) == BLANK_SIZE


def test_names_of_fields_lead_to_them():
    message = StoredMessage("t", b"12345", "", queue_id=7, born_address=bytes(8))
    message.store_address = bytes(8)
    content = encode(message)
    assert content[FIELD_AT["queue_id"] :][:4] == b"\0\0\0\7"
    assert content[FIELD_AT["body_size"] :][:4] == b"\0\0\0\5"
    assert content[BODY_AT:][:5] == b"12345"
