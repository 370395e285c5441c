import io
import json
import os
import signal
import subprocess
import sys
import threading
from base64 import b64decode
from pathlib import Path

import pytest
from tests.platforms.marks import not_windows, only_linux
from tests.undecodable import BOMB, send_three
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq.cli.commands.messages.consume import shown_by
from pyromq.message import StoredMessage

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
    assert "has no queue 77; it has 0 to" in refused.err


def test_no_offsets_are_left_behind(cli, fill):
    fill("consume-quietly", "1", "2")
    cli("consume", "consume-quietly", "--from", "beginning", "--count", "2")

    assert "consume-quietly" not in cli("group", "progress", "TOOLS_CONSUMER").out


def test_absent_topic_is_one_line_of_error(cli, served):
    failed = cli("consume", "consume-nothing", *ALL)

    assert failed.code == 1
    assert failed.err == (
        "error: No topic route info in name server for the topic: consume-nothing; "
        "`pyromq topic list` lists existing topics\n"
    )


def test_wrong_start_is_refused_with_the_usage(cli):
    refused = cli("consume", "t", "--from", "tomorrow")

    assert refused.code == 2
    assert "'tomorrow' is not a time; write beginning, end, now" in refused.err


def test_a_group_goes_on_where_it_was(cli, served):
    cli("send", "consume-group", "--ordering-key", "k", stdin=b"1\n2\n3\n4\n")
    member = ("consume", "consume-group", "--group", "consume-g", "--from", "beginning", "--count", "2")

    assert cli(*member).lines == ["1", "2"]
    assert cli(*member).lines == ["3", "4"]
    assert sum(row["lag"] for row in json.loads(cli("group", "progress", "consume-g", "-o", "json").out)) == 0


def test_members_of_a_group_share_the_queues_and_leave_cleanly_on_ctrl_c_and_sigterm(cli, served, start_process):
    cli("topic", "create", "consume-shared", "--queues", "4")
    arguments = ("consume", "consume-shared", "--group", "consume-both", "-o", "json", "-n", served.namesrv)
    members = [start_process(*arguments) for _ in range(2)]
    seen = [[], []]
    readers = [
        threading.Thread(target=lambda p=process, s=records: s.extend(map(json.loads, p.stdout)), daemon=True)
        for process, records in zip(members, seen, strict=True)
    ]
    for reader in readers:
        reader.start()

    def online():
        shown = cli("group", "show", "consume-both", "-o", "json")
        return json.loads(shown.out)["online"] if shown.code == 0 else 0  # its first heartbeat makes the group

    wait_until(lambda: online() == 2)
    for round_ in range(30):  # both have their queues after a few of them
        cli("send", "consume-shared", stdin=b"".join(b"%d\n" % n for n in range(8 * round_, 8 * round_ + 8)))
        if all(seen):
            break
    wait_until(lambda: len(seen[0]) + len(seen[1]) == 8 * (round_ + 1))
    for process, number in zip(members, (signal.SIGINT, signal.SIGTERM), strict=True):
        process.send_signal(number)
    assert [process.wait(PATIENCE_SECONDS) for process in members] == [130, 130]
    for reader in readers:
        reader.join(PATIENCE_SECONDS)

    assert sorted(int(record["body"]) for record in seen[0] + seen[1]) == list(range(8 * (round_ + 1)))
    assert [process.stderr.read().strip() for process in members] == ["", ""]
    assert online() == 0
    assert {row["lag"] for row in json.loads(cli("group", "progress", "consume-both", "-o", "json").out)} == {0}


@only_linux
@pytest.mark.parametrize(
    ("command", "err"),
    [
        (("consume",), ""),
        (("receive", "--group", "in-background", "--follow"), ""),
        (("send",), "0 messages were confirmed\n"),
    ],
)
def test_a_background_process_of_a_script_ends_at_sigterm_and_not_at_ctrl_c(cli, served, start_process, command, err):
    cli("topic", "create", "background")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts `pyromq consume background &`
    try:
        name, *options = command
        process = start_process(name, "background", *options, "-n", served.namesrv, stdin=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: handles(process.pid, signal.SIGTERM))

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)

    assert process.wait(PATIENCE_SECONDS) == 130
    assert err.strip() in process.stderr.read()


def handles(pid, number):
    """Tell whether a process has a handler for this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@not_windows
@pytest.mark.parametrize("more", [(), ("--group", "consume-piped"), ("-o", "json", "--tags", "red")])
def test_a_closed_pipe_ends_it_while_nothing_comes(cli, served, start_process, more):
    """As `pyromq consume ... | head -1`."""
    topic = f"consume-piped-{len(more)}"
    cli("send", topic, "1", "--tags", "red")
    process = start_process("consume", topic, "--from", "beginning", *more, "-n", served.namesrv)
    assert process.stdout.readline()

    process.stdout.close()

    assert process.wait(PATIENCE_SECONDS) == 1
    assert process.stderr.read() == ""


@not_windows
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_message_that_a_closed_pipe_did_not_take_is_not_committed(cli, served, start_process, unbuffered):
    topic, group = f"consume-cut-{unbuffered}", f"readers-{unbuffered}"
    cli("topic", "create", topic, "--queues", "1")
    cli("send", topic, "first")
    cli("send", topic, "x" * 4_000_000)  # more than a pipe takes
    process = start_process(
        *("consume", topic, "-g", group, "--from", "beginning", "-n", served.namesrv), PYTHONUNBUFFERED=unbuffered
    )
    assert os.read(process.stdout.fileno(), 6) == b"first\n"
    assert os.read(process.stdout.fileno(), 1) == b"x"

    process.stdout.close()

    assert process.wait(PATIENCE_SECONDS) == 1
    rows = json.loads(cli("group", "progress", group, "-t", topic, "-o", "json").out)
    assert [row["consumer_offset"] for row in rows] == [1]


def test_what_a_group_cannot_do_is_refused_with_the_usage(cli):
    refused = cli("consume", "t", "--group", "g", "--until", "now")
    assert (refused.code, "--last, --until and --queue are not for --group" in refused.err) == (2, True)
    refused = cli("consume", "t", "--group", "g", "--from", "7")
    assert (refused.code, "`pyromq offset set`" in refused.err) == (2, True)


@pytest.mark.parametrize("start", ["end", "2030-01-01"])
def test_a_new_member_begins_where_it_is_told_though_the_topic_is_small(cli, served, start_process, start):
    topic = f"consume-young-{len(start)}"
    cli("send", topic, "--ordering-key", "k", stdin=b"old\nolder\n")
    process = start_process(
        "consume", topic, "--group", f"{topic}-group", "--from", start, "--count", "1", "-n", served.namesrv
    )
    progress = ("group", "progress", f"{topic}-group", "-o", "json")
    wait_until(
        lambda: (
            (found := cli(*progress)).code == 0
            and any(row["lag"] == 0 and row["consumer_offset"] == 2 for row in json.loads(found.out))
        )
    )

    cli("send", topic, "new", "--ordering-key", "k")

    assert process.stdout.readline() == "new\n"


def flip_a_bit_of(served, body):
    """Damage the stored body, once the broker has read what it wrote."""
    while not served.do(indexed(served.broker)):
        pass
    (path,) = (served.broker.config.data / "commitlog").iterdir()
    with path.open("r+b") as file:
        place = file.read().rindex(body)
        file.seek(place)
        file.write(bytes([body[0] ^ 1]))


async def indexed(broker):
    return broker.store.index_step(1.0)


@pytest.mark.parametrize("member", [(), ("--group", "readers")], ids=["tool", "member"])
def test_a_damaged_message_is_told_and_passed_over(cli, served, member):
    topic = f"consume-damaged-{len(member)}"
    cli("send", topic, "--ordering-key", "k", stdin=f"{topic} 0\n{topic} 1\n{topic} 2\n".encode())
    flip_a_bit_of(served, f"{topic} 1".encode())

    outcome = cli("consume", topic, "--from", "beginning", "--count", "2", *member)
    assert (outcome.code, outcome.lines) == (0, [f"{topic} 0", f"{topic} 2"])
    if not member:  # a member's word goes to the log
        assert "of consume-damaged-0 at broker-a, queue offset 1, log offset" in outcome.err
        assert "its body does not match its checksum; it is skipped" in outcome.err


@pytest.mark.parametrize("member", [(), ("--group", "stoppers")], ids=["tool", "member"])
def test_with_stop_it_ends_before_a_damaged_message(cli, served, member):
    topic = f"consume-stopped-{len(member)}"
    cli("send", topic, "--ordering-key", "k", stdin=f"{topic} 0\n{topic} 1\n{topic} 2\n".encode())
    flip_a_bit_of(served, f"{topic} 1".encode())

    outcome = cli("consume", topic, "--from", "beginning", "--damaged", "stop", *member)
    assert (outcome.code, outcome.lines) == (1, [f"{topic} 0"])
    assert "error: damaged message in queue" in outcome.err
    assert "queue offset 1, log offset" in outcome.err


@pytest.mark.parametrize("member", [(), ("--group", "unpackers")], ids=["tool", "member"])
@pytest.mark.parametrize(("body", "why"), [(BOMB, "decompresses to more than"), (b"no zlib", "cannot be decompressed")])
def test_a_body_that_cannot_be_decompressed_is_told_and_what_follows_is_shown(cli, served, member, body, why):
    topic = f"consume-packed-{len(member)}-{len(body)}"
    served.do(send_three(served.namesrv, topic, body))

    shown = cli("consume", topic, "--from", "beginning", "--count", "3", *member)
    assert (shown.code, shown.lines) == (0, ["first", "last"])
    assert f"of {topic} at broker-a, queue offset 1: body of {len(body)} bytes {why}" in shown.err

    rows = cli("consume", topic, "--from", "beginning", "--count", "3", "-o", "json").lines
    row = json.loads(rows[1])
    assert why in row["body_error"]
    assert b64decode(row["body_base64"]) == body
    assert "body" not in row


def test_a_body_rules_no_terminal_but_is_piped_as_it_is(cli, served, monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    terminal = Terminal(io.BytesIO())
    monkeypatch.setattr("sys.stdout", terminal)
    body = "\x1b[2J\x9b1m caf\u00e9\tx\ny\r\x07".encode()
    message = StoredMessage("t", body)
    show = shown_by(None, "text")
    show(message)
    show(StoredMessage("t", b"\xff\xfe"))
    assert terminal.buffer.getvalue().decode() == "\\x1b[2J\\x9b1m caf\u00e9\tx\ny\\r\\x07\n\\xff\\xfe\n"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO()))
    show(message)
    assert sys.stdout.buffer.getvalue() == body + b"\n"


def test_dead_letters_need_a_group(cli, served):
    outcome = cli("consume", "orders", "--damaged", "dead-letter")
    assert outcome.code == 2
    assert "give --group" in outcome.err


def test_tags_that_look_like_sql_are_hinted_at(cli, call, served):
    cli("send", "consume-sql", "x", "--tags", "cheap")
    where = ("--from", "beginning", "--until", "now", "--namesrv", served.namesrv)
    shown = call("consume", "consume-sql", *where, "--tags", "price > 17")

    assert (shown.code, shown.out) == (0, "")
    assert shown.err == (
        "tags 'price > 17' look like an SQL expression, and count as a tag of that text:"
        " tags are written `a || b`, an expression is given as sql, not as tags\n"
        "no messages\n"
    )


@pytest.mark.parametrize("tags", ["a ||", "|| a", "||", " ", "* || a", "a | b"])
def test_tags_that_mean_something_else_are_wrong_usage(cli, served, tags):
    refused = cli("consume", "consume-odd", "--tags", tags)
    assert (refused.code, refused.out) == (2, "")


def test_tags_that_hardly_match_are_warned_of(cli, served):
    cli("send", "consume-odd-tags", "x", "--tags", "a b")
    shown = cli("consume", "consume-odd-tags", *ALL, "--tags", "a b")
    assert (shown.lines, shown.code) == (["x"], 0)
    assert shown.err.startswith("warning: 'a b' has the tag 'a b', with ' ' in it")


def test_a_single_bar_in_tags_is_warned_of(cli, served):
    cli("send", "consume-bar", "x", "--tags", "a")
    shown = cli("consume", "consume-bar", *ALL, "--tags", "a|b")
    assert (shown.lines, shown.code) == ([], 0)
    assert "warning: a single | in 'a|b' is part of a tag; two tags are written `a || b`" in shown.err


def test_an_expression_over_properties_chooses(cli, served):
    for price in (5, 17, 18):
        cli("send", "consume-priced", str(price), "--property", f"price={price}")
    assert cli("consume", "consume-priced", *ALL, "--sql", "price > 5 AND price <> 17").lines == ["18"]
    outcome = cli("consume", "consume-priced", *ALL, "--sql", "price >")
    assert outcome.code == 2
    assert "the SQL92 expression 'price >' cannot be used: it ends at character 8" in outcome.err
