"""What compiled code puts into records and queue entries: checksums and hashes, as zlib's and Java's."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.seed import seed_of_the_day

from pyromq.java_hash import java_hash

records = pytest.importorskip("pyromq.speedups.records", reason="the compiled parts are not built")


def test_checksum_of_every_size_is_that_of_zlib():
    """Sizes from which on it is computed otherwise are 8, 16, 64 and 128; the begin in memory may be anywhere."""
    data = Random(seed_of_the_day()).randbytes(2_000)
    for size in range(700):
        for start in (0, 1, 7, 8, 15):
            part = data[start : start + size]
            assert records.crc32(part) == zlib.crc32(part), (size, start)
            assert records.crc32(memoryview(data)[start : start + size]) == zlib.crc32(part), (size, start)


@pytest.mark.parametrize("byte", [0, 1, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4 << 20])
def test_checksum_of_one_byte_repeated_is_that_of_zlib(byte, size):
    data = bytes([byte]) * size
    assert records.crc32(data) == zlib.crc32(data)


@given(st.binary(max_size=300))
def test_checksum_is_that_of_zlib(data):
    assert records.crc32(data) == zlib.crc32(data)


@given(st.text())
def test_hash_is_that_of_java(text):
    assert records.java_hash(text) == java_hash(text)


@given(st.text(st.characters(max_codepoint=0xFFFF, categories=["Cs", "Lu", "Lo", "Cc"])))
def test_hash_of_half_a_pair_is_that_of_java(text):
    assert records.java_hash(text) == java_hash(text)
