"""Rows into messages: what a sink takes, and what of a row arrives where."""

import datetime as dt
from itertools import count

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import IllegalMessage, UsageError
from pyromq.message import decode_properties
from pyromq.record import decode_batch
from pyromq.spark.given_options import sink_options
from pyromq.spark.write.message_columns import dead_letter
from pyromq.spark.write.message_reader import MessageReader
from pyromq.spark.write.sink_options import check_columns


def read(columns, **given):
    """Return the messages of one batch; unique ids are 0, 1, ..."""
    options = sink_options({"topic": "orders"} | given) if "topic" not in columns else sink_options(given)
    numbers = count()
    reader = MessageReader(
        options,
        lambda wanted: pa.array([str(next(numbers)) for _ in range(wanted)], pa.string()),
        lambda key: f"<{key}>",
    )
    return reader.read(pa.RecordBatch.from_pydict(columns))


def rows_of(columns, **given):
    messages = read(columns, **given)
    return [messages.row(index) for index in range(len(messages))]


def pieces_of(messages):
    """Return the messages as a run holds them, each by itself."""
    return [bytes(messages.members.between(number, number + 1)) for number in range(len(messages))]


def properties_of(row):
    return decode_properties(row.properties)


@pytest.mark.parametrize(
    ("columns", "given", "text"),
    [
        ({"value": "binary"}, {}, "column 'value' is unknown to the sink; known are body, bornTimestamp"),
        ({"tags": "string"}, {}, "the sink needs column body; there are tags"),
        ({"body": "int"}, {}, "column body is int; the sink takes binary or string"),
        ({"body": "binary", "keys": "map<string,string>"}, {}, "the sink takes string or array<string>"),
        ({"body": "binary", "queueId": "bigint"}, {}, "column queueId is bigint; the sink takes int"),
        ({"body": "binary"}, {"orderBy": "queueId"}, "option orderBy is queueId, but there is no such column"),
        ({"body": "binary", "delayLevel": "int", "deliverTimestamp": "timestamp"}, {}, "not both"),
        ({"body": "binary", "delayLevel": "int"}, {"delivery": "exactlyOnce"}, "batches cannot be delayed"),
        ({"body": "binary", "a": "int", "b": "int"}, {}, "columns 'a', 'b' are unknown to the sink"),
        ({"Body": "binary"}, {}, "column 'Body' is unknown to the sink"),
        ({"Body": "binary"}, {}, "did you mean body?"),
        ({"body": "binary", "Tags": "string"}, {"extraColumns": "drop"}, "column 'Tags' would be dropped"),
        ({"body": "binary", "x": "array<int>"}, {"extraColumns": "properties"}, "column x is array<int>"),
        ({"body": "binary", "KEYS": "string"}, {"extraColumns": "properties"}, "property 'KEYS' is used by the system"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(columns, given, text):
    with pytest.raises(UsageError) as caught:
        check_columns(columns, sink_options({"topic": "orders"} | given))
    assert text in str(caught.value)


def test_without_a_topic_anywhere_nothing_can_be_written():
    with pytest.raises(UsageError, match="give option topic, or a column topic"):
        check_columns({"body": "binary"}, sink_options({}))
    check_columns({"body": "binary", "topic": "string"}, sink_options({}))


def test_every_column_arrives():
    messages = read(
        {
            "body": ["hello"],
            "tags": ["red"],
            "keys": [["k1", "k2"]],
            "properties": pa.array([[("colour", "blue"), ("none", None)]], pa.map_(pa.string(), pa.string())),
            "flag": pa.array([7], pa.int32()),
            "uniqKey": ["u"],
            "shardingKey": ["s"],
            "queueId": pa.array([3], pa.int32()),
            "brokerName": ["broker-b"],
            "bornTimestamp": pa.array([dt.datetime(2026, 1, 31, tzinfo=dt.UTC)], pa.timestamp("us", tz="UTC")),
        }
    )
    row = messages.row(0)
    assert (row.topic, row.body, row.flag) == ("orders", b"hello", 7)
    wishes = (messages.sharding_keys, messages.broker_names, messages.queue_ids)
    assert [wish.to_pylist() for wish in wishes] == [["s"], ["broker-b"], [3]]
    assert not messages.delayed.any()
    assert properties_of(row) == {
        "UNIQ_KEY": "<u>",
        "KEYS": "k1 k2",
        "TAGS": "red",
        "__SHARDINGKEY": "s",
        "BORN_TIMESTAMP": "1769817600000",
        "colour": "blue",
    }


def test_nulls_are_nothing():
    texts = pa.array([None, "x"], pa.string())
    columns = {"body": [b"1", b"2"], "tags": texts, "keys": [[None, "k"], None], "uniqKey": texts, "flag": [None, 3]}
    maps = pa.array([None, [("a", "1"), ("b", ""), ("c", "3")]], pa.map_(pa.string(), pa.string()))
    first, second = rows_of(columns | {"properties": maps})
    assert properties_of(first) == {"UNIQ_KEY": "0", "KEYS": "k"}
    assert properties_of(second) == {"UNIQ_KEY": "<x>", "TAGS": "x", "a": "1", "c": "3"}
    assert (first.flag, second.flag) == (0, 3)


def test_the_option_wins_over_the_column_topic():
    columns = {"body": [b"1"], "topic": ["column"]}
    assert [row.topic for row in rows_of(columns)] == ["column"]
    assert [row.topic for row in rows_of(columns, topic="option")] == ["option"]


def test_further_columns_may_become_properties():
    columns = {"body": [b"1"], "n": [12], "ok": [True], "day": [dt.date(2026, 1, 31)], "none": [None]}
    (row,) = rows_of(columns, extraColumns="properties")
    assert properties_of(row) == {"UNIQ_KEY": "0", "n": "12", "ok": "true", "day": "2026-01-31"}


@pytest.mark.parametrize(
    ("order", "key", "queue_id"), [("queueId", None, 2), ("shardingKey", "s", None), (None, "s", 2)]
)
def test_one_column_may_choose_the_queue_alone(order, key, queue_id):
    given = {} if order is None else {"orderBy": order}
    messages = read({"body": [b"1"], "shardingKey": ["s"], "queueId": pa.array([2], pa.int32())}, **given)
    wishes = (messages.sharding_keys, messages.queue_ids)
    assert [wish and wish.to_pylist()[0] for wish in wishes] == [key, queue_id]


def test_a_copy_that_is_copied_again_keeps_the_time_of_its_first_birth():
    properties = pa.array([[("BORN_TIMESTAMP", "7")]], pa.map_(pa.string(), pa.string()))
    later = pa.array([8000], pa.timestamp("us", tz="UTC"))
    (row,) = rows_of({"body": [b"1"], "properties": properties, "bornTimestamp": later})
    assert properties_of(row)["BORN_TIMESTAMP"] == "7"
    assert row.properties.count("BORN_TIMESTAMP") == 1


def test_delayed_rows_say_so():
    levels = read({"body": [b"1", b"2", b"3"], "delayLevel": pa.array([3, None, 0], pa.int32())})
    assert [properties_of(levels.row(index)).get("DELAY") for index in range(3)] == ["3", None, None]
    assert levels.delayed.tolist() == [True, False, False]
    moment = pa.array([dt.datetime(2026, 1, 31, 0, 0, 0, 1, tzinfo=dt.UTC)], pa.timestamp("us", tz="UTC"))
    (row,) = rows_of({"body": [b"1"], "deliverTimestamp": moment})
    assert properties_of(row)["TIMER_DELIVER_MS"] == "1769817600001"  # not earlier than asked


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": [None], "tags": ["x"]}, "a row for topic orders has null body"),
        ({"body": [b""]}, "a row for topic orders has empty body"),
        ({"body": [b"1"], "tags": ["a\x01b"]}, "contains a separator"),
        (
            {"body": [b"1"], "delayLevel": pa.array([-1], pa.int32())},
            "column delayLevel is -1 in a row, out of range: 1 to 18",
        ),
        (
            {"body": [b"1"], "properties": pa.array([[("TAGS", "x")]], pa.map_(pa.string(), pa.string()))},
            "property 'TAGS' is used by the system",
        ),
        (
            {"body": [b"1"], "properties": pa.array([[("x", "\x02")]], pa.map_(pa.string(), pa.string()))},
            "property x='\\x02' contains a separator",
        ),
        ({"body": [b"1"], "topic": pa.array([None], pa.string())}, "a row has no topic"),
        ({"body": [b"1"], "topic": ["a b"]}, "column topic is 'a b' in a row"),
        ({"body": [b"1"], "topic": ["SCHEDULE_TOPIC_XXXX"]}, "only brokers write to this topic"),
        ({"body": [b"1"], "keys": [["k 2"]]}, "column keys has 'k 2' in a row"),
        ({"body": [b"1"], "tags": [" "]}, "column tags in a row: tags=' '"),
        ({"body": [b"1", b"2"], "tags": ["a", "a||b"]}, "column tags in a row: tags='a||b'"),
        ({"body": [b"1"], "tags": [" a"]}, "no subscription finds a tag with blanks around it"),
        ({"body": [b"1"], "delayLevel": pa.array([99], pa.int32())}, "column delayLevel is 99 in a row, out of range"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns, text):
    with pytest.raises(IllegalMessage) as caught:
        rows_of(columns)
    assert text in str(caught.value)


def test_tags_and_levels_are_taken_where_an_option_says_so():
    columns = {"body": [b"1"], "tags": [" a"], "delayLevel": pa.array([20], pa.int32())}
    (row,) = rows_of(columns, verifyTags="false", delayLevels="20")
    assert (properties_of(row)["TAGS"], properties_of(row)["DELAY"]) == (" a", "20")


def test_a_null_body_is_dropped_or_becomes_a_tombstone():
    columns = {"body": pa.array([b"1", None], pa.binary()), "tags": ["a", "b"]}
    assert [row.body for row in rows_of(columns, nullBody="drop")] == [b"1"]
    first, second = rows_of(columns, nullBody="tombstone")
    assert ("TOMBSTONE" in properties_of(first), properties_of(second)["TOMBSTONE"]) == (False, "true")
    assert (first.body, second.body) == (b"1", b"\0")
    assert len(read({"body": pa.array([None], pa.binary())}, nullBody="drop")) == 0


def test_columns_that_mean_nothing_are_dropped_where_an_option_says_so():
    columns = {"body": [b"1"], "msgId": ["m"], "tags": ["a"]}
    check_columns(dict.fromkeys(columns, "string"), sink_options({"topic": "t", "extraColumns": "drop"}))
    (row,) = rows_of(columns, extraColumns="drop")
    assert properties_of(row) == {"UNIQ_KEY": "0", "TAGS": "a"}


NEVER_NULL = pa.field("element", pa.string(), nullable=False)


@pytest.mark.parametrize(
    ("keys", "properties", "text"),
    [
        (pa.list_(NEVER_NULL), pa.map_(pa.string(), NEVER_NULL), pa.string()),
        (pa.list_(pa.large_string()), pa.map_(pa.large_string(), pa.large_string()), pa.large_string()),
        (pa.large_list(pa.string()), pa.map_(pa.string(), pa.string()), pa.string()),
    ],
    ids=["as split and array make them", "with large texts", "large lists"],
)
def test_texts_of_all_kinds_are_taken(keys, properties, text):
    columns = {
        "body": pa.array(["1", "2"], text),
        "tags": pa.array(["t", None], text),
        "keys": pa.array([["a", "b"], None], keys),
        "properties": pa.array([[("p", "v")], None], properties),
        "shardingKey": pa.array(["s", None], text),
    }
    first, second = rows_of(columns)
    found = properties_of(first)
    assert (first.body, found["TAGS"], found["KEYS"], found["p"], found["__SHARDINGKEY"]) == (
        b"1",
        "t",
        "a b",
        "v",
        "s",
    )
    assert properties_of(second) == {"UNIQ_KEY": "1"}


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.text("abc", max_size=9)), min_size=1, max_size=20))
def test_the_members_are_those_of_a_batch(given_rows):
    bodies = pa.array([body for body, _ in given_rows], pa.binary())
    messages = read({"body": bodies, "tags": [tag for _, tag in given_rows]})
    joined = b"".join(pieces_of(messages))
    rows = [messages.row(index) for index in range(len(messages))]
    assert list(decode_batch(joined)) == [(row.flag, row.body, row.properties) for row in rows]
    assert [row.body for row in rows] == [body for body, _ in given_rows]
    assert messages.sizes.sum() == len(joined)


def test_some_messages_are_as_they_were_among_all():
    messages = read({"body": [b"1", b"2", b"3"], "flag": pa.array([1, 2, 3], pa.int32())})
    some = messages.where(np.array([True, False, True]))
    assert pieces_of(some) == pieces_of(messages)[::2]


def test_too_large_rows_are_found_and_kept_in_part():
    given = {"maxMessageBytes": "100k", "sendBatchBytes": "50k", "onTooLarge": "dlq", "deadLetterTopic": "dead"}
    columns = {"body": [b"x" * 102_400, b"1", b"2"], "keys": ["k", "k" * 33_000, "k"], "tags": ["t", "t", "t"]}
    messages = read(columns, **given)
    assert messages.too_large.tolist() == [True, True, False]
    assert "102400 bytes of body" in messages.refusal(0)
    assert "bytes of properties; the limit is 32567" in messages.refusal(1)
    options = sink_options({"topic": "orders"} | given)
    letter = dead_letter(messages.row(0), "why", options)
    assert (letter.topics.to_pylist(), letter.row(0).body) == (["dead"], b"x" * 51_200)
    assert properties_of(letter.row(0)) == {
        "TOO_LARGE": "why", "ORIGIN_TOPIC": "orders", "ORIGIN_BODY_BYTES": "102400", "UNIQ_KEY": "0", "KEYS": "k",
        "TAGS": "t",
    }  # fmt: skip
    assert not dead_letter(messages.row(1), "why", options).too_large.any()
