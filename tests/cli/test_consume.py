import json

import pytest

ALL = ("--from", "beginning", "--until", "now")


@pytest.fixture
def fill(cli, served):
    """Send bodies to a topic, each a millisecond later than the one before."""

    def send(topic, *bodies, **options):
        times = []
        for body in bodies:
            served.pass_time(1)
            times.append(served.now_ms())
            arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
            assert cli("send", topic, body, *arguments).code == 0
        return times

    return send


def test_messages_of_all_queues_come_in_the_order_they_were_stored(cli, fill):
    bodies = [str(number) for number in range(10)]
    fill("consume-order", *bodies)

    assert cli("consume", "consume-order", *ALL).lines == bodies


def test_many_messages_of_one_millisecond_keep_their_order(cli, served):
    lines = [str(number) for number in range(500)]
    cli("send", "consume-many", stdin="\n".join(lines).encode())

    assert cli("consume", "consume-many", *ALL).lines == lines


def test_json_has_every_coordinate(cli, served):
    cli("send", "consume-json", '{"id": 1}', "--keys", "k")
    record = json.loads(cli("consume", "consume-json", *ALL, "-o", "json").out)

    assert (record["topic"], record["broker"], record["body"], record["keys"]) == (
        "consume-json",
        "broker-a",
        '{"id": 1}',
        ["k"],
    )
    assert record["store_time"][10] == "T"


def test_offset_is_where_each_queue_starts(cli, served):
    cli("send", "consume-offset", "--ordering-key", "k", stdin=b"a\nb\nc\n")

    assert cli("consume", "consume-offset", "--from", "1", "--until", "now").lines == ["b", "c"]
    assert cli("consume", "consume-offset", "--from", "9", "--until", "now").lines == []


def test_times_bound_what_is_read_to_the_millisecond(cli, served, fill):
    first, *_ = fill("consume-time", "before")
    served.pass_time(10)
    cli("send", "consume-time", "--ordering-key", "k", stdin=b"a\nb\nc\nd\ne\n")  # all in one millisecond
    middle = served.now_ms()
    fill("consume-time", "after")

    def read(start, until):
        return cli("consume", "consume-time", "--from", str(start), "--until", str(until)).lines

    assert read(middle, middle) == ["a", "b", "c", "d", "e"]
    assert read(first, middle - 1) == ["before"]
    assert read(first + 1, middle + 1000) == ["a", "b", "c", "d", "e", "after"]


def test_only_wanted_tags_are_shown_and_none_is_an_end_too(cli, served):
    cli("send", "consume-tags", "1", "--tags", "red")
    cli("send", "consume-tags", "2", "--tags", "blue")
    cli("send", "consume-tags", stdin=b"3\n" * 100)

    assert cli("consume", "consume-tags", *ALL, "--tags", "red || green").lines == ["1"]
    assert cli("consume", "consume-tags", *ALL, "--tags", "yellow").lines == []


def test_count_ends_it(cli, fill):
    fill("consume-count", "1", "2", "3")

    assert cli("consume", "consume-count", "--from", "beginning", "--count", "2").lines == ["1", "2"]


def test_one_queue_may_be_chosen(cli, served):
    records = cli("send", "consume-queue", "-o", "json", stdin=b"a\nb\nc\nd\n").lines
    chosen = json.loads(records[2])

    assert cli("consume", "consume-queue", *ALL, "--queue", str(chosen["queue"])).lines == ["c"]
    refused = cli("consume", "consume-queue", *ALL, "--queue", "77")
    assert refused.code == 1
    assert "has no queue [77]" in refused.err


def test_no_offsets_are_left_behind(cli, fill):
    fill("consume-quietly", "1", "2")
    cli("consume", "consume-quietly", "--from", "beginning", "--count", "2")

    assert "consume-quietly" not in cli("group", "progress", "TOOLS_CONSUMER").out


def test_absent_topic_is_one_line_of_error(cli, served):
    failed = cli("consume", "consume-nothing", *ALL)

    assert failed.code == 1
    assert failed.err == (
        "error: No topic route info in name server for the topic: consume-nothing; "
        "`pyromq topic list` shows what there is\n"
    )


def test_wrong_start_is_refused_with_the_usage(cli):
    refused = cli("consume", "t", "--from", "yesterday")

    assert refused.code == 2
    assert "'yesterday' is no time; write beginning, end, now" in refused.err
