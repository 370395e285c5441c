"""Compressed bodies: unpacked as they were, never to more than the limit; whatever else they hold is an error."""

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.compression import check_compressed, compress, decompress
from pyromq.errors import UndecodableBody
from pyromq.message import StoredMessage, SysFlag

TEXT = b"a body that repeats itself " * 100


def packed(kind, body=TEXT):
    if kind == SysFlag.LZ4:
        return pytest.importorskip("lz4.frame").compress(body)
    if kind == SysFlag.ZSTD:
        return pytest.importorskip("zstandard").ZstdCompressor().compress(body)
    return compress(body)


KINDS = pytest.mark.parametrize("kind", [0, SysFlag.ZLIB, SysFlag.LZ4, SysFlag.ZSTD])


@KINDS
@pytest.mark.parametrize("body", [b"", b"x", TEXT, TEXT * 100], ids=["none", "one", "some", "many"])
def test_what_was_packed_is_unpacked(kind, body):
    raw = packed(kind, body)
    assert decompress(raw, 1 | kind, max(1, len(body))) == body
    check_compressed(raw, 1 | kind, max(1, len(body)))


@KINDS
@pytest.mark.parametrize("unpack", [decompress, check_compressed])
def test_a_byte_more_than_the_limit_is_refused(kind, unpack):
    with pytest.raises(UndecodableBody, match=f"decompresses to more than {len(TEXT) - 1}, the limit"):
        unpack(packed(kind), 1 | kind, len(TEXT) - 1)


@KINDS
def test_damaged_and_cut_bodies_are_refused(kind):
    for raw in (b"no stream", b"\x00" + packed(kind), b"", packed(kind)[:-5], packed(kind)[:-1]):
        with pytest.raises(UndecodableBody, match=f"body of {len(raw)} bytes cannot be decompressed: "):
            decompress(raw, 1 | kind)


@pytest.mark.parametrize("has_checksum", [False, True])
def test_a_zstandard_body_is_whole_or_refused(has_checksum):
    codec = pytest.importorskip("zstandard")
    pieces = codec.ZstdCompressor(write_checksum=has_checksum).compressobj()
    flushed = [pieces.compress(TEXT) + pieces.flush(codec.COMPRESSOBJ_FLUSH_BLOCK) for _ in range(3)]
    frame = b"".join([*flushed, pieces.flush()])
    assert decompress(frame * 2, 1 | SysFlag.ZSTD) == TEXT * 6
    for end in range(len(frame) - 1):
        with pytest.raises(UndecodableBody, match="cannot be decompressed"):
            decompress(frame + frame[: end + 1], 1 | SysFlag.ZSTD)


def test_zstandard_bodies_of_countless_blocks_are_refused():
    pytest.importorskip("zstandard")
    head, empty = b"\x28\xb5\x2f\xfd\x00\x58", b"\x00\x00\x00"
    assert decompress(head + empty * 1000 + b"\x01\x00\x00", 1 | SysFlag.ZSTD) == b""
    with pytest.raises(UndecodableBody, match="more than 100000 blocks"):
        decompress(head + empty * 100_000 + b"\x01\x00\x00", 1 | SysFlag.ZSTD)


def test_a_zstandard_body_that_looks_back_far_is_refused():
    codec = pytest.importorskip("zstandard")
    body = codec.ZstdCompressor(
        compression_params=codec.ZstdCompressionParameters(window_log=25, write_content_size=False)
    ).compressobj()
    with pytest.raises(UndecodableBody, match="too much memory"):
        decompress(body.compress(TEXT) + body.flush(), 1 | SysFlag.ZSTD)


@pytest.mark.parametrize("kind", [0x400, 0x500, 0x600, 0x700])
def test_kinds_of_later_versions_are_refused(kind):
    with pytest.raises(UndecodableBody, match=f"in a way that is not known here: sysFlag says {kind:#x}"):
        decompress(packed(0), 1 | kind)


def test_what_follows_the_end_counts_for_nothing():
    raw = packed(0) + b"more"
    assert decompress(raw, 1) == zlib.decompress(raw) == TEXT


@KINDS
def test_looking_at_a_bomb_takes_no_memory(kind):
    bomb = packed(kind, bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableBody, match="decompresses to more than"):
            check_compressed(bomb, 1 | kind)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_message_tells_why_it_has_no_body():
    message = StoredMessage("t", packed(0), sys_flag=SysFlag.COMPRESSED, max_body_bytes=10)
    assert "more than 10" in str(message.body_error)
    with pytest.raises(UndecodableBody, match="more than 10"):
        _ = message.body
    message.max_body_bytes = len(TEXT)
    assert (message.body_error, message.body) == (None, TEXT)
    assert StoredMessage("t", b"plain", max_body_bytes=1).body_error is None


def test_a_body_unpacked_ahead_is_kept_if_it_is_small():
    message = StoredMessage("t", packed(0), sys_flag=SysFlag.COMPRESSED)
    assert message.unpack(len(TEXT) - 1) == 0
    assert message.body is not message.body
    assert message.unpack(len(TEXT)) == len(TEXT)
    assert message.body is message.body
    assert message.body == TEXT
    message.max_body_bytes = 10
    with pytest.raises(UndecodableBody, match="more than 10"):
        message.unpack(1000)


@given(st.binary(max_size=200), st.sampled_from([0, SysFlag.ZLIB, SysFlag.LZ4, SysFlag.ZSTD, 0x500]), st.data())
def test_whatever_comes_is_a_body_within_the_limit_or_refused(noise, kind, data):
    raw = bytearray(packed(0 if kind == 0x500 else kind))
    at = data.draw(st.integers(0, len(raw)))
    raw[at : at + data.draw(st.integers(0, 3))] = noise
    for body in (bytes(raw), noise):
        try:
            unpacked = decompress(body, 1 | kind, 1000)
        except UndecodableBody:
            with pytest.raises(UndecodableBody):
                check_compressed(body, 1 | kind, 1000)
        else:
            assert len(unpacked) <= 1000
            check_compressed(body, 1 | kind, 1000)
