"""Commands over messages that strangers made: none hides the others."""

import json

import pytest
from tests.console.odd_messages import ODD_TIMES, odd_messages

from pyromq.message import StoredMessage
from pyromq.names import HALF_TOPIC, dead_letter_topic


@pytest.fixture(scope="module")
def odd(shared):
    """How many messages there are: odd ones, and a plain one behind them."""

    async def fill():
        admin, cluster = await shared.cluster.admin(), shared.cluster
        for topic in ("odd", dead_letter_topic("odd")):
            await admin.create_topic(topic, 1)
            messages = [*odd_messages(topic, store_ms=cluster.clock.now_ms()), StoredMessage(topic, b"the last one")]
            for message in messages:
                cluster.broker.store.append(message)
        for ms in ODD_TIMES:
            text = f"TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01odd{ms}\x02REAL_TOPIC\x01odd\x02REAL_QID\x010"
            cluster.broker.store.append(
                StoredMessage(HALF_TOPIC, b"odd", text, born_ms=ms, store_ms=cluster.clock.now_ms())
            )
        return len(messages)

    return shared.do(fill())


def test_consumed_messages_are_all_printed(cli, served, odd):
    done = cli("consume", "odd", "--from", "beginning", "--until", "now", "-o", "json")
    found = [json.loads(line) for line in done.out.split("\n")[:-1]]
    assert (done.code, len(found), found[-1]["body"]) == (0, odd, "the last one")
    times = [each["born_time"] for each in found if each.get("body") == "odd time"]
    assert len(times) == len(ODD_TIMES) and times[0] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "odd", "--from", "beginning", "--until", "now"),
        ("consume", "odd", "--from", "beginning", "--until", "now", "-f", "%k %g %T %i %r %v\n"),
        ("consume", "odd", "--from", "beginning", "--until", "now", "--sql", "a IS NULL"),
        ("dlq", "list", "odd"),
        ("dlq", "list", "odd", "-o", "json"),
        ("topic", "stats", "odd"),
        ("topic", "stats", "odd", "-o", "json"),
    ],
    ids=" ".join,
)
def test_no_message_hides_another(cli, served, odd, arguments):
    done = cli(*arguments)
    assert done.code == 0, done.err
    assert "the last one" in done.out or arguments[0] != "consume"
    if arguments[:2] == ("dlq", "list") and "json" in arguments:
        assert len(json.loads(done.out)) == odd


@pytest.mark.parametrize("output", ["table", "json"])
def test_half_messages_of_any_time_are_listed(cli, served, odd, output):
    done = cli("transaction", "list", "-o", output)
    assert done.code == 0, done.err
    assert all(f"odd{ms}" in done.out for ms in ODD_TIMES)
