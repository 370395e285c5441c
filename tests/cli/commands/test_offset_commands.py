import json

import pytest


@pytest.fixture
def place(cli, served):
    """Send three messages to one queue; its topic, broker and id."""
    cli("group", "create", "offset-group")

    def send(topic):
        record = json.loads(cli("send", topic, "--ordering-key", "k", "-o", "json", stdin=b"a\nb\nc\n").lines[0])
        return topic, "broker-a", str(record["queue"])

    return send


def test_bounds_of_queues_are_shown(cli, place):
    topic, _, queue = place("offset-bounds")
    rows = json.loads(cli("offset", "show", topic, "-o", "json").out)

    assert {row["queue"]: (row["min_offset"], row["max_offset"]) for row in rows}[int(queue)] == (0, 3)


def test_offset_of_one_queue_is_set(cli, place):
    topic, broker, queue = place("offset-set")
    assert cli("offset", "set", "offset-group", topic, broker, queue, "2").code == 0

    rows = json.loads(cli("group", "progress", "offset-group", "-o", "json").out)
    assert {row["queue"]: row["lag"] for row in rows}[int(queue)] == 1


def test_queue_that_does_not_exist_is_refused(cli, place):
    topic, broker, _ = place("offset-absent")
    failed = cli("offset", "set", "offset-group", topic, broker, "99", "0")

    assert failed.code == 1
    assert failed.err.startswith(f"error: topic {topic} has no queue broker-a 99; it has broker-a 0, ")


@pytest.mark.parametrize("offset", ["4", "100000"])
def test_offset_outside_the_queue_is_refused_with_its_bounds(cli, place, offset):
    topic, broker, queue = place(f"offset-beyond-{offset}")
    refused = cli("offset", "set", "offset-group", topic, broker, queue, offset)

    assert (refused.code, refused.out) == (1, "")
    end = json.loads(cli("offset", "show", topic, "-o", "json").out)[int(queue)]["max_offset"]
    assert refused.err == f"error: offset {offset} is outside queue {queue} of broker-a, which has 0 to {end}\n"
    assert cli("offset", "set", "offset-group", topic, broker, queue, str(end)).code == 0


def test_group_is_moved_to_a_place_or_a_time(cli, served, place):
    topic, _, queue = place("offset-reset")
    cli("group", "create", "offset-moved")
    later = served.now_ms() + 1
    served.pass_time(1000)
    cli("send", topic, "--ordering-key", "k", stdin=b"d\n")

    def offset_after(where):
        rows = json.loads(cli("offset", "reset", "offset-moved", topic, "--to", where, "-o", "json").out)
        return {str(row["queue"]): row["offset"] for row in rows}[queue]

    assert (offset_after("beginning"), offset_after("end")) == (0, 4)
    assert offset_after(str(later + 900)) == 3
    assert cli("offset", "reset", "offset-moved", topic, "--to", "5").code == 2


def test_offsets_are_cloned_to_another_group(cli, served):
    cli("topic", "create", "offset-cloned", "--queues", "1")
    cli("send", "offset-cloned", stdin=b"1\n2\n3\n")
    cli("consume", "offset-cloned", "--group", "offset-first", "--from", "beginning", "--count", "3")

    rows = json.loads(cli("offset", "clone", "offset-first", "offset-second", "offset-cloned", "-o", "json").out)
    assert rows == [{"broker": "broker-a", "queue": 0, "offset": 3}]
    assert cli("offset", "clone", "offset-nobody", "offset-second", "offset-cloned").code == 1


def test_entries_of_a_consume_queue_are_shown(cli, served):
    cli("topic", "create", "offset-entries", "--queues", "1")
    cli("send", "offset-entries", stdin=b"1\n2\n3\n")

    rows = json.loads(cli("offset", "entries", "offset-entries", "broker-a", "0", "1", "-o", "json").out)
    assert [row["offset"] for row in rows] == [1, 2]
    assert cli("message", "at", "offset-entries", "broker-a", "0", "2").code == 0
    missing = cli("message", "at", "offset-entries", "broker-a", "0", "9")
    assert (missing.code, "no message at offset 9" in missing.err) == (1, True)
