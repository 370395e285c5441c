"""Options of a read: what is understood, and what is said about mistakes."""

from dataclasses import fields
from pathlib import Path

import pytest

from pyromq.errors import SubscriptionParseFailed, UsageError
from pyromq.spark.read.options import ReadOptions, documentation, read_options
from pyromq.spark.write.options import sink_options


def test_names_are_read_in_any_case_as_spark_hands_them_over():
    options = read_options(
        {"namesrvaddr": "a:1", "SUBSCRIBE": "x, y", "arrowBatchBytes": "2m", "failondataloss": "false"}
    )
    assert (options.namesrv, options.subscribe) == ("a:1", ("x", "y"))
    assert (options.arrow_bytes, options.fail_on_data_loss) == (2 << 20, False)


def test_offsets_are_given_by_topic_broker_and_queue():
    options = read_options({"subscribe": "x", "startingOffsets": '{"x":{"b":{"0":23,"1":-2}}}'})
    assert options.starting_offsets == {"x": {"b": {"0": 23, "1": -2}}}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "x", "startingOfsets": "latest"}, "did you mean startingOffsets"),
        ({"subscribe": "x", "retries": "3"}, "repeated until deadlineMs"),
        ({"subscribe": "x", "maxPartitions": "0"}, "maxPartitions is '0'"),
        ({"subscribe": "x", "startingOffsets": "begin"}, "startingOffsets is 'begin'"),
        ({"subscribe": "x", "failOnDataLoss": "no"}, "write true or false"),
        ({"subscribe": "x", "endingTimestamp": "soon"}, "endingTimestamp is 'soon'"),
        ({"subscribe": " , "}, "names no topic"),
        ({"assign": "[1]"}, "option assign is"),
        ({"subscribe": "x", "assign": "{}"}, "option assign is '{}'"),
        ({"assign": '{"x":{}}'}, "option assign is"),
        ({"assign": '{"x":{"b":[]}}'}, "option assign is"),
        ({"assign": '{"x":{"b":{"0":23}}}'}, r"lists of queues \(where they begin is startingOffsets\)"),
        ({"assign": '{"x":{"b":"01"}}'}, "option assign is"),
        ({"assign": '{"x":{"b":[0.5]}}'}, "option assign is"),
        ({"assign": '{"x":{"b":[-1]}}'}, "option assign is"),
        ({"subscribe": "x", "startingOffsets": "latest"}, "from where a batch reads nothing"),
        ({}, "subscribe"),
        ({"subscribe": "x", "assign": '{"x":{"b":[0]}}'}, "one of them"),
        ({"subscribe": "x", "minPartitions": "3", "maxPartitions": "2"}, "more than maxPartitions"),
        ({"subscribe": "x", "startingOffsets": '{"x":{"b":{"0":1.7}}}'}, "write earliest, latest, group, or {"),
        ({"subscribe": "x", "startingOffsetsByTimestamp": "latest"}, "is 'latest'; write {"),
        ({"subscribe": "x", "endingOffsets": "earliest"}, "endingOffsets is 'earliest'; write latest or {"),
        (
            {"subscribe": "x", "startingOffsets": "latest", "startingOffsetsByTimestamp": '{"x":{"b":{"0":1}}}'},
            "options startingOffsets and startingOffsetsByTimestamp say where to begin; give one of them",
        ),
        (
            {"subscribe": "x", "endingOffsets": '{"x":{"b":{"0":1}}}', "endingTimestamp": "5"},
            "options endingOffsets and endingTimestamp say where to end; give one of them",
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_write(given, text):
    with pytest.raises(UsageError, match=text):
        read_options(given)


def test_a_tag_expression_is_checked_before_anything_is_opened():
    with pytest.raises(SubscriptionParseFailed):
        read_options({"subscribe": "x", "tagFilter": "||"})
    with pytest.raises(SubscriptionParseFailed, match="it ends at character 4"):
        read_options({"subscribe": "x", "sqlFilter": "a >"})


def test_every_option_is_documented():
    table = documentation()
    assert "| `endingOffsets` | `latest` |" in table
    assert all(f"| `{option.metadata['name']}` |" in table for option in fields(ReadOptions) if option.metadata)


def test_the_page_for_users_has_the_options_as_they_are():
    page = Path(__file__).parents[3] / "docs" / "spark.md"
    assert documentation() in page.read_text()


def test_the_drivers_environment_names_the_name_servers_unless_an_option_does(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "a:1")
    assert read_options({"subscribe": "t"}).namesrv == sink_options({}).namesrv == "a:1"
    for name in ("namesrvAddr", "namesrvaddr", "endpoints"):
        assert read_options({"subscribe": "t", name: "b:2"}).namesrv == sink_options({name: "b:2"}).namesrv == "b:2"
