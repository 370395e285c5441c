"""Trace records: the bytes of Java's clients, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.tracing.trace_records import (
    ConsumeCode,
    Consumed,
    Decided,
    Delivered,
    MessageType,
    Sent,
    keys_of,
    read_records,
    write_record,
)

HOST, OFFSET_ID = "127.0.0.1:10911", "7F00000100002A9F0000000000000000"
AT = 1_700_000_000_000
# What TraceDataEncoder of RocketMQ 4.9.7 writes, with | for character 1 and / for character 2.
JAVA = [
    (
        Sent(
            AT,
            "DefaultRegion",
            "shop",
            "orders",
            "ID",
            "paid",
            "k1 k2",
            HOST,
            128,
            12,
            MessageType.DELAY,
            OFFSET_ID,
            True,
        ),
        f"Pub|1700000000000|DefaultRegion|shop|orders|ID|paid|k1 k2|{HOST}|128|12|3|{OFFSET_ID}|true/",
        ["ID", "k1", "k2"],
    ),
    (
        Sent(AT, "DefaultRegion", "shop", "orders", "A,B", None, None, HOST, 128, 12, MessageType.NORMAL, None, False),
        f"Pub|1700000000000|DefaultRegion|shop|orders|A,B|null|null|{HOST}|128|12|0|null|false/",
        ["A", "B"],
    ),
    (
        Delivered(AT, None, "billing", "REQ1", "ID1", 2, None),
        "SubBefore|1700000000000|null|billing|REQ1|ID1|2|null/",
        ["ID1"],
    ),
    (
        Consumed("REQ1", "ID2", 3, False, "a b", ConsumeCode.EXCEPTION, AT, "billing"),
        "SubAfter|REQ1|ID2|3|false|a b|2|1700000000000|billing/",
        ["ID2", "a", "b"],
    ),
    (
        Decided(
            AT,
            "DefaultRegion",
            "shop",
            "orders",
            "ID3",
            "t",
            "k",
            HOST,
            MessageType.COMMIT,
            "ID3",
            "ROLLBACK_MESSAGE",
            True,
        ),
        f"EndTransaction|1700000000000|DefaultRegion|shop|orders|ID3|t|k|{HOST}|2|ID3|ROLLBACK_MESSAGE|true/",
        ["ID3", "k"],
    ),
]


def wire(text):
    return text.replace("|", "\x01").replace("/", "\x02")


@pytest.mark.parametrize(("record", "text", "keys"), JAVA, ids=lambda each: type(each).__name__)
def test_records_are_those_of_java(record, text, keys):
    assert write_record(record) == wire(text)
    assert list(read_records(wire(text).encode())) == [record]
    assert keys_of(record) == keys


@pytest.mark.parametrize(
    ("text", "record"),
    [
        (
            f"Pub|1|r|g|t|ID|null|null|{HOST}|1|2|0|true/",  # before offset ids
            Sent(1, "r", "g", "t", "ID", None, None, HOST, 1, 2, MessageType.NORMAL, None, True),
        ),
        (
            f"Pub|1|r|g|t|ID|null|null|{HOST}|1|2|4|{OFFSET_ID}|true|10.0.0.1/",  # with the client's address
            Sent(1, "r", "g", "t", "ID", None, None, HOST, 1, 2, MessageType.ORDER, OFFSET_ID, True),
        ),
        ("SubBefore|1|r|g|REQ|ID|0/", Delivered(1, "r", "g", "REQ", "ID", 0, None)),  # Java drops an empty last field
        ("SubAfter|REQ|ID|3|true|k|0|/", Consumed("REQ", "ID", 3, True, "k", ConsumeCode.SUCCESS)),
    ],
)
def test_other_versions_are_read(text, record):
    assert list(read_records(wire(text).encode())) == [record]


def test_what_is_no_record_is_passed_over():
    good = wire(JAVA[2][1])
    body = f"Recall\x011\x02Pub\x01x\x02{good}SubAfter\x02\x02Pub\x011\x01r\x02"
    assert list(read_records(body.encode())) == [JAVA[2][0]]


@given(st.binary(max_size=200))
def test_any_bytes_are_read(body):
    list(read_records(body))


words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)
texts = st.none() | words.filter(lambda text: text != "null")


@given(st.builds(Delivered, st.integers(0), texts, words, words, words, st.integers(0, 99), texts))
def test_records_come_back(record):
    assert list(read_records(write_record(record).encode())) == [record]
