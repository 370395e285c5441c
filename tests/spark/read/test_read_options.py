"""Options of a read: what is understood, and what is said about mistakes."""

from dataclasses import fields
from pathlib import Path

import pytest
from scripts.documentation.spark_options import documentation_of

from pyromq.errors import MQError, SubscriptionParseFailed, UsageError
from pyromq.message import MessageQueue
from pyromq.spark.columns import SOURCE_COLUMNS
from pyromq.spark.given_options import read_options
from pyromq.spark.options import STREAM
from pyromq.spark.read.read_options import ReadOptions


def test_names_are_read_in_any_case_as_spark_hands_them_over():
    options = read_options(
        {"namesrvaddr": "a:1", "SUBSCRIBE": "x, y", "arrowBatchBytes": "2m", "failondataloss": "false"}
    )
    assert (options.namesrv, options.subscribe) == ("a:1", ("x", "y"))
    assert (options.arrow_bytes, options.fail_on_data_loss) == (2 << 20, False)


def test_times_are_ms_or_have_a_unit():
    options = read_options({"subscribe": "x", "deadlineMs": "5m", "pullTimeoutMs": "200"})
    assert (options.deadline_ms, options.pull_timeout_ms) == (300_000, 200)


def test_offsets_are_given_by_topic_broker_and_queue():
    options = read_options({"subscribe": "x", "startingOffsets": '{"x":{"b":{"0":23,"1":-2}}}'})
    assert options.starting_offsets == {MessageQueue("x", "b", 0): 23, MessageQueue("x", "b", 1): -2}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "x", "maxPartitions": "0"}, "maxPartitions is '0'"),
        ({"subscribe": "x", "pullBatchSize": "9" * 10}, "pullBatchSize is '9999999999'; .* from 1 to 2147483647"),
        ({"subscribe": "x", "pullBytes": "9g"}, "pullBytes is '9g'; write bytes from 1 to"),
        ({"subscribe": "x", "pullBytes": "9999m"}, "pullBytes is '9999m'; write bytes from 1 to"),
        ({"subscribe": "x", "deadlineMs": "600h"}, "deadlineMs is '600h'; write 500ms, 5s or 15m, at most 24 days"),
        ({"subscribePattern": " "}, "option subscribePattern is empty"),
        ({"subscribe": "x", "startingOffsets": '{"x":{"b":{"0":-3}}}'}, "write earliest, latest, group, or {"),
        ({"subscribe": "x", "endingOffsets": '{"x":{"b":{"-1":3}}}'}, "write latest or {"),
        ({"subscribe": "x", "startingOffsets": "begin"}, "startingOffsets is 'begin'"),
        ({"subscribe": "x", "failOnDataLoss": "no"}, "write true or false"),
        ({"subscribe": "x", "endingTimestamp": "soon"}, "endingTimestamp is 'soon'"),
        ({"subscribe": " , "}, "option subscribe is ' , ', which has no name"),
        ({"assign": "[1]"}, "option assign is"),
        ({"subscribe": "x", "assign": "{}"}, "option assign is '{}'"),
        ({"assign": '{"x":{}}'}, "option assign is"),
        ({"assign": '{"x":{"b":[]}}'}, "option assign is"),
        ({"assign": '{"x":{"b":{"0":23}}}'}, r"lists of queues \(option startingOffsets says where they begin\)"),
        ({"assign": '{"x":{"b":"01"}}'}, "option assign is"),
        ({"assign": '{"x":{"b":[0.5]}}'}, "option assign is"),
        ({"assign": '{"x":{"b":[-1]}}'}, "option assign is"),
        ({"subscribe": "x", "startingOffsets": "latest"}, "a batch from there is empty"),
        ({}, "subscribe"),
        ({"subscribe": "x", "assign": '{"x":{"b":[0]}}'}, "give one of the options"),
        ({"subscribe": "x", "minPartitions": "3", "maxPartitions": "2"}, "more than maxPartitions"),
        ({"subscribe": "x", "startingOffsets": '{"x":{"b":{"0":1.7}}}'}, "write earliest, latest, group, or {"),
        ({"subscribe": "x", "startingOffsetsByTimestamp": "latest"}, "is 'latest'; write {"),
        ({"subscribe": "x", "endingOffsets": "earliest"}, "endingOffsets is 'earliest'; write latest or {"),
        (
            {"subscribe": "x", "startingOffsets": "latest", "startingOffsetsByTimestamp": '{"x":{"b":{"0":0}}}'},
            "options startingOffsets and startingOffsetsByTimestamp say where to begin; give one of them",
        ),
        (
            {"subscribe": "x", "endingOffsets": '{"x":{"b":{"0":1}}}', "endingTimestamp": "0"},
            "options endingOffsets and endingTimestamp say where to end; give one of them",
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_write(given, text):
    with pytest.raises(UsageError, match=text):
        read_options(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"namesrvAddr": "a"}, "option namesrvAddr is 'a': name server address 'a' is not host:port"),
        ({"subscribe": "a b"}, "option subscribe is 'a b': The specified topic[a b] contains illegal characters"),
        ({"subscribe": "orders-*"}, "a pattern is given by option subscribePattern"),
        ({"group": "a b"}, "option group is 'a b': the specified group"),
        ({"columns": ","}, "option columns is ',', which has no name"),
        ({"columns": "bdy"}, "option columns is 'bdy': column 'bdy' does not exist; did you mean body?"),
        ({"columns": "body, qeueId"}, "column 'qeueId' does not exist; did you mean queueId?"),
        ({"columns": "body,42"}, "column '42' does not exist; known are body, "),
        ({"tagFilter": "a b"}, "option tagFilter is 'a b'"),
        ({"tagFilter": "a ||"}, "option tagFilter is 'a ||'"),
        ({"sqlFilter": "a >"}, "option sqlFilter is 'a >'"),
        ({"tagFilter": "a", "sqlFilter": "b = 1"}, "options tagFilter and sqlFilter exclude"),
        (
            {"startingTimestamp": "1767225600"},
            "a time before 1973; write ms since 1970; if these are seconds, write 17",
        ),
        ({"endingTimestamp": "1767225600000000"}, "if these are microseconds, write 1767225600000"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "a time without a zone"),
        ({"startingTimestamp": "2026-01-31"}, "a time without a zone"),
        ({"startingOffsetsByTimestamp": '{"x":{"b":{"0":1767225600}}}'}, "if these are seconds"),
        (
            {"startingTimestamp": "2026-02-01T00:00:00Z", "endingTimestamp": "2026-01-01T00:00:00Z"},
            "option startingTimestamp is 1769904000000, after endingTimestamp",
        ),
        ({"startingOffsets": '{"ordrs":{"b":{"0":9}}}'}, "names topic 'ordrs', which this read does not have"),
        ({"subscribe": "orders", "endingOffsets": '{"ordrs":{"b":{"0":9}}}'}, "did you mean orders?"),
        ({"endingOffsetsByTimestamp": '{"y":{"b":{"0":1700000000000}}}'}, "ByTimestamp names topic 'y'"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "Strategy needs startingTimestamp or startingOffsetsByT"),
        (
            {"startingOffsets": '{"x":{"b":{"0":9}}}', "endingOffsets": '{"x":{"b":{"0":8}}}'},
            "queue 0 of topic x at b: startingOffsets is 9, after endingOffsets 8",
        ),
    ],
)
def test_a_misleading_value_is_told(given, text):
    with pytest.raises(MQError) as caught:
        read_options({"subscribe": "x"} | given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"assign": '{"a b":{"b":[0]}}'}, ": The specified topic[a b] contains"),
        ({"assign": '{"x":{"b":[0]}}', "startingOffsets": '{"x":{"b":{"1":9}}}'}, "queue 1 of topic x at b, which"),
        ({"subscribePattern": "x.*", "startingOffsets": '{"y":{"b":{"0":9}}}'}, "names topic 'y', which this read"),
        ({"subscribe": "x", "maxTriggerDelay": "5s"}, "option maxTriggerDelay needs minOffsetsPerTrigger"),
        ({"subscribe": "x", "commitInterval": "1s"}, "option commitInterval needs group"),
        (
            {"subscribe": "x", "commitInterval": "1s", "group": "g", "commitOffsets": "false"},
            "option commitInterval needs group",
        ),
        ({"subscribe": "x", "lagPrometheus": "."}, "option lagPrometheus is '.', which is a folder; name a file"),
    ],
)
def test_a_misleading_option_of_a_stream_is_told(given, text):
    with pytest.raises(MQError) as caught:
        read_options(given, STREAM)
    assert text in str(caught.value)


def test_options_that_fit_each_other_are_accepted():
    table = '{"x":{"b":{"0":1700000000000}}}'
    strategy = {"startingOffsetsByTimestampStrategy": "error"}
    read_options({"subscribe": "x", "startingOffsetsByTimestamp": table} | strategy)
    read_options({"subscribePattern": "x|y", "startingTimestamp": "0"} | strategy)
    read_options({"subscribe": "x", "minOffsetsPerTrigger": "9", "maxTriggerDelay": "5s"}, STREAM)
    read_options({"subscribe": "x", "group": "g", "commitInterval": "1s"}, STREAM)
    assert read_options({"subscribe": "x", "columns": "body, tags,body"}).columns == ("body", "tags")


def test_a_time_is_read_in_its_zone():
    options = read_options(
        {"subscribe": "x", "startingTimestamp": "2026-01-31T13:00:00+01:00", "endingOffsets": "latest"}
    )
    assert (
        options.starting_ms == read_options({"subscribe": "x", "startingTimestamp": "2026-01-31T12:00:00Z"}).starting_ms
    )


def test_a_tag_expression_is_checked_before_anything_is_opened():
    with pytest.raises(SubscriptionParseFailed):
        read_options({"subscribe": "x", "tagFilter": "||"})
    with pytest.raises(SubscriptionParseFailed, match="it ends at character 4"):
        read_options({"subscribe": "x", "sqlFilter": "a >"})


def test_every_option_is_documented():
    table = documentation_of(ReadOptions)
    assert "| `endingOffsets` | `latest` |" in table
    assert all(f"| `{option.metadata['name']}` |" in table for option in fields(ReadOptions) if option.metadata)


def test_the_page_for_users_has_the_options_as_they_are():
    page = Path(__file__).parents[3] / "docs" / "spark-reading.md"
    assert documentation_of(ReadOptions) in page.read_text()


def test_the_page_for_users_has_all_columns():
    page = Path(__file__).parents[3] / "docs" / "spark-reading.md"
    rows = "\n".join(f"| `{name}` | {type_} |" for name, type_ in SOURCE_COLUMNS.items())
    assert f"| column | type |\n|---|---|\n{rows}\n\n" in page.read_text()
