"""`pyromq delay`, and `pyromq send` with a time, against a real cluster whose clock stands still."""

import json
from datetime import UTC, datetime

import pytest


@pytest.fixture
def topic(request):
    return f"delay-{abs(hash(request.node.name))}"


@pytest.fixture
def send_later(cli, topic):
    """Send to the test's own topic with a delay; return what `-o json` says."""

    def send(body, delay, *options):
        done = cli("send", topic, body, "--delay", delay, "-o", "json", *options)
        assert done.code == 0, done.err
        return json.loads(done.out)

    return send


def waiting(cli, *arguments):
    return json.loads(cli("delay", "list", *arguments, "-o", "json").out)


def consumed(cli, topic):
    return cli("consume", topic, "--from", "beginning", "--until", "now").lines


# -- sending


@pytest.mark.parametrize(
    ("delay", "seconds"), [("5", 5), ("5s", 5), ("1.5s", 1.5), ("10m", 600), ("0.5h", 1800), ("2d", 172_800)]
)
def test_a_delay_is_a_number_and_a_unit(cli, served, topic, send_later, delay, seconds):
    now = served.now_ms()
    send_later("later", delay)
    (message,) = waiting(cli, topic)
    assert datetime.fromisoformat(message["due"]).timestamp() * 1000 == now + seconds * 1000


@pytest.mark.parametrize("form", ["{ms}", "{utc:%Y-%m-%dT%H:%M:%S+00:00}", "{local:%Y-%m-%d %H:%M:%S}"])
def test_the_time_may_be_a_date_or_ms(cli, served, topic, form):
    ms = served.now_ms() // 1000 * 1000 + 60_000
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    done = cli("send", topic, "later", "--deliver-at", form.format(ms=ms, utc=moment, local=moment.astimezone()))
    assert done.code == 0
    (message,) = waiting(cli, topic)
    assert datetime.fromisoformat(message["due"]) == moment


@pytest.mark.parametrize("name", ["message_id", "offset_message_id"])
def test_an_id_cancels_as_the_handle_does(cli, served, topic, send_later, name):
    send_later("other", "1h")
    sent = send_later("later", "2h")
    done = cli("delay", "cancel", sent[name])
    assert (done.code, done.lines) == (0, [f"{sent['message_id']}  cancelled"]), done.err
    again = cli("delay", "cancel", sent[name])
    assert (again.code, again.out) == (1, "")
    assert sent[name] in again.err
    assert len(waiting(cli, topic)) == 1


def test_a_delayed_message_says_how_to_cancel_it(cli, served, topic):
    done = cli("send", topic, "later", "--delay", "1h")
    assert done.lines[0].startswith("SEND_OK  ")
    (message,) = waiting(cli, topic)
    assert done.lines[1] == f"cancel with: pyromq delay cancel {message['recall_handle']}"


def test_each_line_of_input_waits(cli, served, topic):
    assert cli("send", topic, "--delay", "1h", stdin=b"1\n2\n3\n").out == "sent 3 messages\n"
    assert len(waiting(cli, topic)) == 3


def test_a_time_in_the_past_is_now(cli, served, topic):
    done = cli("send", topic, "now", "--deliver-at", "2001-01-01", "-o", "json")
    assert json.loads(done.out)["recall_handle"] is None
    assert done.err.startswith("not delayed, delivered at once: the broker's clock is past")
    assert waiting(cli, topic) == []
    lines = cli("send", topic, "--deliver-at", "2001-01-01", stdin=b"1\n2\n")
    assert (lines.out, lines.err.count("not delayed")) == ("sent 2 messages\n", 1)
    assert cli("send", topic, "later", "--delay", "1h").err == ""


def test_a_delay_level_may_be_chosen(cli, served, topic):
    done = cli("send", topic, "later", "--delay-level", "3", "-o", "json")
    assert done.code == 0
    message = json.loads(cli("message", "show", json.loads(done.out)["offset_message_id"], "-o", "json").out)
    assert message["topic"] == "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize(
    "options",
    [
        ("--delay", "soon"),
        ("--delay", "5x"),
        ("--delay", ""),
        ("--delay", "-5"),
        ("--deliver-at", "tomorrow"),
        ("--deliver-at", "10m"),
        ("--delay-level", "x"),
        ("--delay-level", "-1"),
        ("--delay", "5", "--deliver-at", "2030-01-01"),
        ("--delay", "5", "--delay-level", "1"),
    ],
)
def test_what_is_no_time_or_two_of_them_is_wrong_usage(cli, served, topic, options):
    done = cli("send", topic, "x", *options)
    assert done.code == 2
    assert options[0] in done.err


def test_beyond_the_limit_the_error_names_limit_and_setting(cli, served, topic):
    done = cli("send", topic, "x", "--delay", "31d")
    assert done.code == 1
    assert "the limit is 2592000 s, broker setting timerMaxDelaySec" in done.err


# -- listing and counting


def test_the_list_is_in_order_of_delivery(cli, served, topic, send_later):
    send_later("second", "2h", "--tags", "red", "--keys", "k")
    send_later("first", "1h")
    done = cli("delay", "list", topic)
    assert done.lines[0].split() == ["due", "message_id", "sent", "broker", "queue", "size", "tags", "keys"]
    assert [line.split()[-2:] for line in done.lines[1:]] == [["-", "-"], ["red", "k"]]


def test_json_holds_all_that_is_known(cli, served, topic, send_later):
    sent = send_later("hello", "2h", "--tags", "red", "--keys", "k")
    (message,) = waiting(cli, topic)
    assert message["recall_handle"] == sent["recall_handle"]
    assert (message["topic"], message["broker"], message["queue"]) == (topic, sent["broker"], sent["queue"])
    assert (message["message_id"], message["size"]) == (sent["message_id"], 5)
    assert (message["tags"], message["keys"]) == ("red", ["k"])


def test_a_list_is_cut_and_says_so(cli, served, topic, send_later):
    for hours in (1, 2, 3):
        send_later("x", f"{hours}h")
    done = cli("delay", "list", topic, "--count", "2")
    assert (len(done.lines), done.err) == (3, "there are more; --count N shows up to N\n")


def test_a_list_may_begin_at_a_time(cli, served, topic, send_later):
    for hours in (1, 2, 3):
        send_later("x", f"{hours}h")
    assert len(waiting(cli, topic, "--begin", str(served.now_ms() + 2 * 3_600_000))) == 2


def test_nothing_waiting_is_no_error(cli, served):
    cli("topic", "create", "delay-none")
    done = cli("delay", "list", "delay-none")
    assert (done.code, done.out, done.err) == (0, "", "topic delay-none has no scheduled messages\n")


def test_listing_what_waits_in_a_topic_that_is_not_there_says_so(cli, served):
    failed = cli("delay", "list", "delay-typo")
    assert (failed.code, failed.out) == (1, "")
    assert "delay-typo" in failed.err


def test_counts_are_by_topic_or_of_one(cli, served, topic, send_later):
    for hours in (1, 2, 3):
        send_later("x", f"{hours}h")
    assert {"topic": topic, "waiting": 3} in json.loads(cli("delay", "count", "-o", "json").out)
    assert cli("delay", "count", topic).lines[1].split() == [topic, "3"]
    assert json.loads(cli("delay", "count", topic, "-o", "json").out) == [{"topic": topic, "waiting": 3}]
    assert json.loads(cli("delay", "count", "unknown", "-o", "json").out) == [{"topic": "unknown", "waiting": 0}]


# -- cancelling


def test_cancelled_messages_never_come(cli, served, topic, send_later):
    first, second, third = (send_later(body, "1m")["recall_handle"] for body in ("1", "2", "3"))
    done = cli("delay", "cancel", first, third)
    assert done.code == 0
    assert [line.split()[-1] for line in done.lines] == ["cancelled", "cancelled"]
    assert [message["recall_handle"] for message in waiting(cli, topic)] == [second]
    served.pass_time(61_000)
    assert consumed(cli, topic) == ["2"]


def test_one_that_cannot_be_cancelled_makes_the_exit_code_1_and_does_not_stop_the_others(
    cli, served, topic, send_later
):
    good, done_before = (send_later(body, "1h") for body in ("1", "2"))
    assert cli("delay", "cancel", done_before["recall_handle"]).code == 0
    done = cli("delay", "cancel", "nonsense", done_before["recall_handle"], good["recall_handle"], "-o", "json")
    outcomes = [json.loads(line) for line in done.lines]
    assert done.code == 1
    assert [each["outcome"] for each in outcomes] == ["failed", "failed", "cancelled"]
    assert "no message with id 'nonsense'" in outcomes[0]["error"]
    assert [line.split()[:2] for line in done.err.splitlines()] == [
        ["error:", "nonsense"],
        ["error:", done_before["recall_handle"]],
    ]
    assert "or cancelled before" in outcomes[1]["error"]
    assert outcomes[2]["message_id"] == good["message_id"]


def test_cancelling_needs_a_handle(cli):
    assert cli("delay", "cancel").code == 2
