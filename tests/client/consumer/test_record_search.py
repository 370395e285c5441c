"""Records are searched in the compiled way as in the plain one: what holds a word, and whatever is compressed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.speedups.test_decoding import damaged, records

from pyromq.client.consumer import pulling
from pyromq.client.consumer.pulling import decode_holding
from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage, SysFlag
from pyromq.record import decode_all

decoding = pytest.importorskip("pyromq.speedups.decoding")


def plainly(raw: bytes, words: tuple[bytes, ...], *, ignore_case: bool = False) -> list[StoredMessage] | str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pulling, "_decoder", None)
        try:
            return decode_holding(raw, words, broker_name="broker-a", ignore_case=ignore_case)
        except StoreCorrupt as error:
            return str(error)


@st.composite
def searched(draw: st.DrawFn) -> tuple[bytes, tuple[bytes, ...]]:
    """Records, and words: pieces of them, over their borders too, and others."""
    raw = b"".join(draw(st.lists(records(), min_size=1, max_size=5)))
    piece = st.tuples(st.integers(0, len(raw) - 1), st.integers(1, 120)).map(lambda at: raw[at[0] : sum(at)])
    return raw, tuple(draw(st.lists(piece | st.binary(min_size=1, max_size=3), min_size=1, max_size=4)))


@given(searched())
def test_the_same_records_are_found_both_ways(given_: tuple[bytes, tuple[bytes, ...]]):
    raw, words = given_
    found = decoding.RecordDecoder(StoredMessage).decode_holding(raw, words, "broker-a")
    assert found == plainly(raw, words)

    expected, position = [], 0
    for message in decode_all(raw, broker_name="broker-a"):
        record = raw[position : position + message.size]
        position += message.size
        if message.sys_flag & SysFlag.COMPRESSED or any(word in record for word in words):
            expected.append(message)
    assert found == expected


@given(searched())
def test_case_is_ignored_both_ways(given_: tuple[bytes, tuple[bytes, ...]]):
    raw, words = given_[0], tuple(word.lower() for word in given_[1])
    found = decode_holding(raw, words, broker_name="broker-a", ignore_case=True)
    assert found == plainly(raw, words, ignore_case=True)
    position, expected = 0, []
    for message in decode_all(raw, broker_name="broker-a"):
        record = raw[position : position + message.size].lower()
        position += message.size
        if message.sys_flag & SysFlag.COMPRESSED or any(word in record for word in words):
            expected.append(message)
    assert found == expected


def test_a_text_of_another_length_is_refused():
    with pytest.raises(ValueError, match="another length"):
        decoding.RecordDecoder(StoredMessage).decode_holding(b"abc", (b"a",), "broker-a", b"ab")


@given(damaged(), st.binary(min_size=1, max_size=3))
def test_damaged_records_are_left_to_the_plain_path(raw: bytes, word: bytes):
    found = decoding.RecordDecoder(StoredMessage).decode_holding(raw, (word,), "broker-a")
    if found is not None:
        assert found == plainly(raw, (word,))


@pytest.mark.parametrize("words", [(), (b"",), (b"a", b"b", b"c", b"d", b"e")])
def test_words_that_are_none_or_too_many_are_left_to_the_plain_path(words: tuple[bytes, ...]):
    assert decoding.RecordDecoder(StoredMessage).decode_holding(b"", words, "broker-a") is None


def test_a_word_is_bytes():
    with pytest.raises(TypeError):
        decoding.RecordDecoder(StoredMessage).decode_holding(b"", ("text",), "broker-a")


def test_nothing_is_found_in_nothing():
    assert decode_holding(b"", (b"a",)) == []
    with pytest.raises(StoreCorrupt, match="no record at byte 0"):
        decode_holding(b"abc", (b"a",))
