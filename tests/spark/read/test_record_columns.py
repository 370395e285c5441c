"""Stored records into Arrow columns."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from pyromq.compression import compress
from pyromq.errors import StoreCorrupt, UndecodableBody
from pyromq.message import StoredMessage, SysFlag
from pyromq.record import encode
from pyromq.spark.read.record_columns import ARROW_TYPES, RowFormat, arrow_schema, count_records, to_batch, to_batches

ALL = list(ARROW_TYPES)


def record(body=b"body", text="", **fields):
    return encode(StoredMessage("topic", body, text, **fields))


def rows(raw, columns=ALL, **options):
    return to_batch(raw, "broker-a", columns, RowFormat(**options)).to_pylist()


def test_every_field_of_a_record_is_in_its_column():
    raw = record(
        text="TAGS\x01red\x02KEYS\x01k1  k2\x02UNIQ_KEY\x01ABC\x02größe\x01naïve",
        queue_id=3,
        flag=7,
        queue_offset=41,
        log_offset=0x1234,
        born_ms=1_700_000_000_123,
        born_address=bytes([10, 0, 0, 1]) + (99).to_bytes(4, "big"),
        store_ms=1_700_000_000_456,
        store_address=bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big"),
        reconsume_times=2,
    )
    (row,) = rows(raw)
    assert [row.pop(name).timestamp() for name in ("bornTimestamp", "storeTimestamp")] == [
        1700000000.123,
        1700000000.456,
    ]
    assert row == {
        "topic": "topic",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 41,
        "msgId": "7F00000100002A9F0000000000001234",
        "uniqKey": "ABC",
        "tags": "red",
        "keys": ["k1", "k2"],
        "body": b"body",
        "properties": [("größe", "naïve")],
        "bornHost": "10.0.0.1:99",
        "reconsumeTimes": 2,
        "sysFlag": 0,
        "flag": 7,
        "commitLogOffset": 0x1234,
    }


def test_a_record_without_properties_has_nulls_and_empty_lists():
    (row,) = rows(record(), ["uniqKey", "tags", "keys", "properties"])
    assert row == {"uniqKey": None, "tags": None, "keys": [], "properties": []}


def test_system_properties_come_when_asked_for():
    (row,) = rows(record(text="TAGS\x01x\x02a\x011"), ["properties"], system_properties=True)
    assert row["properties"] == [("TAGS", "x"), ("a", "1")]


BOMB = compress(bytes(1_000_000))


def test_a_body_that_cannot_be_decompressed_is_null_and_properties_say_why():
    raw = b"".join(
        [
            record(b"plain", "a\x01b"),
            record(BOMB, "a\x01b\x02UNDECODABLE\x01forged", sys_flag=SysFlag.COMPRESSED),
            record(b"no zlib", sys_flag=SysFlag.COMPRESSED),
            record(b"new", sys_flag=SysFlag.COMPRESSED | 0x500),
            record(compress(b"packed"), sys_flag=SysFlag.COMPRESSED),
        ]
    )
    found = rows(raw, ["body", "properties"], max_body_bytes=10_000)
    assert [row["body"] for row in found] == [b"plain", None, None, None, b"packed"]
    reasons = [dict(row["properties"]).get("UNDECODABLE") for row in found]
    assert [reasons[0], reasons[4]] == [None, None]
    assert reasons[1] == f"body of {len(BOMB)} bytes decompresses to more than 10000, the limit"
    assert "cannot be decompressed" in reasons[2]
    assert "not known here" in reasons[3]
    assert dict(found[1]["properties"])["a"] == "b"


def test_it_may_be_had_as_it_is_stored_or_be_an_error():
    raw = record(b"no zlib", sys_flag=SysFlag.COMPRESSED)
    (row,) = rows(raw, ["body", "properties"], undecodable="raw")
    assert row["body"] == b"no zlib"
    assert "UNDECODABLE" in dict(row["properties"])
    with pytest.raises(UndecodableBody):
        rows(raw, undecodable="fail")
    assert rows(raw, ["properties"], undecodable="fail") == [{"properties": []}], "bodies that nobody wants are left"


def test_bodies_that_are_large_together_are_shared_out():
    raw = b"".join(record(compress(bytes([n]) * 1000), sys_flag=SysFlag.COMPRESSED, queue_id=n) for n in range(10))
    reading = RowFormat(max_batch_bytes=2500)
    batches = list(to_batches(raw, "broker-a", ["queueId", "body"], reading))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["queueId"], row["body"]) for row in found] == [(n, bytes([n]) * 1000) for n in range(10)]
    assert max(batch.num_rows for batch in batches) <= 2
    assert [batch.num_rows for batch in to_batches(raw, "broker-a", ["body"])] == [10]
    (alone,) = to_batches(record(compress(bytes(9000)), sys_flag=SysFlag.COMPRESSED), "b", ["body"], reading)
    assert alone.num_rows == 1


noises = st.sampled_from([b"\xff", b"\0", b"\x7f"]).map(lambda byte: byte * 4) | st.binary(min_size=4, max_size=4)


@settings(max_examples=100)
@given(st.lists(st.sampled_from([0, SysFlag.COMPRESSED, SysFlag.BORN_HOST_IPV6]), min_size=1, max_size=20), st.data())
def test_changed_records_are_rows_or_an_error_and_nothing_beyond_them_is_read(flags, data):
    parts = [
        record(
            compress(b"x" * n),
            "TAGS\x01red\x02KEYS\x01k1",
            sys_flag=flag,
            born_address=bytes(20 if flag & SysFlag.BORN_HOST_IPV6 else 8),
        )
        for n, flag in enumerate(flags)
    ]
    raw = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(1, 4))):
        at, size = data.draw(st.integers(0, len(raw) - 4)), data.draw(st.sampled_from([1, 2, 4]))
        raw[at : at + size] = data.draw(noises)[:size]
    try:
        found = rows(bytes(raw))
    except StoreCorrupt:
        return
    assert sum(len(row["body"] or b"") for row in found if not row["sysFlag"] & 1) <= len(raw)


def test_times_that_no_calendar_holds_are_null():
    raw = b"".join(record(born_ms=ms, store_ms=1000) for ms in (1000, 1 << 62, -(1 << 62), 253_402_300_800_000))
    found = rows(raw, ["bornTimestamp", "storeTimestamp"])
    assert [row["bornTimestamp"] and row["bornTimestamp"].timestamp() for row in found] == [1.0, None, None, None]
    assert {row["storeTimestamp"].timestamp() for row in found} == {1.0}


def test_compressed_bodies_are_the_applications_again():
    raw = record(compress(b"long" * 1000), sys_flag=SysFlag.COMPRESSED) + record(b"plain")
    assert [row["body"] for row in rows(raw, ["body"])] == [b"long" * 1000, b"plain"]


def test_records_with_ipv6_addresses_are_read_as_well():
    raw = record(sys_flag=SysFlag.BORN_HOST_IPV6, born_address=bytes(20), text="a\x011") + record(b"other")
    assert [row["body"] for row in rows(raw, ["body"])] == [b"body", b"other"]


def test_only_wanted_tags_stay_though_hashes_are_equal():
    raw = b"".join(record(tag.encode(), f"TAGS\x01{tag}") for tag in ("Aa", "BB", "Aa"))
    assert [row["body"] for row in rows(raw, ["body"], tags=frozenset({"Aa"}))] == [b"Aa", b"Aa"]


def test_columns_come_in_the_order_asked_for():
    batch = to_batch(record(), "b", ["flag", "topic"])
    assert batch.schema == arrow_schema(["flag", "topic"])


def test_nothing_pulled_is_an_empty_batch():
    assert rows(b"") == []


def test_records_of_one_size_and_of_others_begin_where_they_begin():
    sizes = [40] * 100 + [7, 40, 40] + [9] * 50 + list(range(30))
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    assert [row["body"] for row in rows(b"".join(map(record, bodies)), ["body"])] == bodies


@pytest.mark.parametrize("cut", [1, 50, 90])
def test_bytes_that_end_in_the_middle_of_a_record_are_refused(cut):
    with pytest.raises(StoreCorrupt):
        count_records(record()[:-cut])


def test_every_record_of_a_genuine_store_reads_as_java_said(java_store_records):
    raw, expected = java_store_records
    found = rows(raw, ["queueOffset", "body", "properties", "commitLogOffset"], system_properties=True)
    assert len(found) == len(expected)
    for row, message in zip(found, expected, strict=True):
        assert (row["queueOffset"], row["commitLogOffset"]) == (message["queueOffset"], message["commitLogOffset"])
        assert dict(row["properties"]) == message["properties"]
        assert hashlib.sha256(row["body"]).hexdigest() == message["bodySha256"]
