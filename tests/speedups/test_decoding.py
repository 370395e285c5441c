"""Records become the same messages in the compiled way as in the plain one, and nothing that this refuses is taken."""

from __future__ import annotations

import ctypes
import mmap
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import StoreCorrupt
from pyromq.java_hash import hash_plainly
from pyromq.message import StoredMessage, SysFlag
from pyromq.record import (
    FIXED_SIZE,
    MAGIC,
    decode,
    decode_all,
    decode_plainly,
    encode,
    mark_addresses,
    texts_at,
    unpack_size_and_magic,
)

decoding = pytest.importorskip("pyromq.speedups.decoding")

NUMBERS = struct.Struct(">4i5q")
address = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    numbers = NUMBERS.unpack(draw(st.binary(min_size=NUMBERS.size, max_size=NUMBERS.size)))
    queue_id, flag, sys_flag, reconsume_times, born_ms, prepared_offset, queue_offset, log_offset, store_ms = numbers
    message = StoredMessage(
        topic=draw(st.just("orders") | text),
        stored_body=draw(st.binary(max_size=200)),
        property_text=draw(text),
        queue_id=queue_id,
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_address=draw(address),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        queue_offset=queue_offset,
        log_offset=log_offset,
        store_ms=store_ms,
        store_address=draw(address),
    )
    mark_addresses(message)
    return encode(message)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Records, some bytes of which are others, or missing."""
    raw = bytearray(b"".join(draw(st.lists(records(), min_size=1, max_size=2))))
    for at in draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    return bytes(raw[: draw(st.just(len(raw)) | st.integers(0, len(raw)))])


def plainly(raw: bytes, *, check_crc: bool) -> list[StoredMessage] | str:
    """Return the messages, or the text of what is raised."""
    messages, position = [], 0
    try:
        while position < len(raw):
            messages.append(decode_plainly(raw, position, check_crc=check_crc))
            messages[-1].broker_name = "broker-a"
            position += messages[-1].size
    except StoreCorrupt as error:
        return str(error)
    return messages


@given(st.lists(records(), max_size=3), st.booleans())
def test_sound_records_become_the_same_messages(parts: list[bytes], check_crc: bool):
    raw = b"".join(parts)
    found = decoding.RecordDecoder(StoredMessage).decode_all(raw, check_crc, "broker-a")
    assert found == plainly(raw, check_crc=check_crc)


def passed_plainly(raw: bytes, end: int, text: bytes) -> int:
    position = 0
    try:
        while position + 8 <= end:
            size, magic = unpack_size_and_magic(raw, position)
            if magic != MAGIC or size < FIXED_SIZE or position + size > end:
                break
            record = raw[position : position + size]
            if text in record[texts_at(record)[1] :]:
                break
            position += size
    except StoreCorrupt:
        pass
    return position


@given(st.lists(records(), max_size=5), st.integers(0, 900), st.sampled_from([b"a", b"0", b"orders", b"\xc3"]))
def test_records_are_passed_up_to_one_whose_properties_hold_a_text(parts: list[bytes], end: int, text: bytes):
    raw = b"".join(parts)
    assert decoding.pass_records(raw, 0, end, text) == passed_plainly(raw, min(end, len(raw)), text)


@given(damaged())
def test_no_record_is_passed_that_the_plain_way_would_look_at(raw: bytes):
    assert decoding.pass_records(raw, 0, len(raw), b"a") <= passed_plainly(raw, len(raw), b"a")


@given(damaged(), st.booleans())
def test_damaged_records_are_left_to_the_plain_path(raw: bytes, check_crc: bool):
    expected = plainly(raw, check_crc=check_crc)
    found = decoding.RecordDecoder(StoredMessage).decode_all(raw, check_crc, "broker-a")
    assert found is None or found == expected
    try:
        assert decode_all(raw, check_crc=check_crc, broker_name="broker-a") == expected
    except StoreCorrupt as error:
        assert str(error) == expected


@given(damaged(), st.integers(-10, 500), st.booleans())
def test_a_record_anywhere_in_a_buffer_is_the_same(raw: bytes, position: int, check_crc: bool):
    found = decoding.RecordDecoder(StoredMessage).decode(memoryview(raw), position, check_crc)
    if found is not None:
        assert found == decode_plainly(raw, position, check_crc=check_crc)


def test_a_text_that_is_broken_spoils_no_later_message():
    sound = encode(StoredMessage("orders", b"x"))
    broken = sound.replace(b"orders", b"order\xff")
    decoder = decoding.RecordDecoder(StoredMessage)
    for raw in (sound, broken, broken, sound):
        found = decoder.decode(raw, 0, True)
        assert found == (None if raw is broken else decode(sound))


@pytest.mark.parametrize("flags", [0, SysFlag.BORN_HOST_IPV6, SysFlag.STORE_HOST_IPV6])
def test_nothing_is_read_behind_the_buffer(flags: int):
    """The page behind it may not be read: who tries ends the process."""
    message = StoredMessage("orders", b"body", "KEYS\x01k", sys_flag=flags)
    message.born_address = bytes(20 if flags & SysFlag.BORN_HOST_IPV6 else 8)
    message.store_address = bytes(20 if flags & SysFlag.STORE_HOST_IPV6 else 8)
    record = encode(message)
    page = mmap.PAGESIZE
    decoder = decoding.RecordDecoder(StoredMessage)
    with mmap.mmap(-1, 2 * page) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
        with memoryview(memory) as view:
            for size in range(len(record)):
                memory[page - size : page] = record[:size]
                with view[page - size : page] as part:
                    assert not decoder.decode_all(part, True, "")
            memory[page - len(record) : page] = record
            with view[page - len(record) : page] as part:
                assert decoder.decode_all(part, True, "") == [decode_plainly(record)]


@given(st.text(st.characters(exclude_categories=[])))
def test_the_hash_is_the_same(text: str):
    assert decoding.java_hash(text) == hash_plainly(text)
