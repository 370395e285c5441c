"""What became of a message in each group, as its events tell: gave up, retried, redriven, consumed."""

import pytest

from pyromq.client.admin.messages.dead_letters import REDRIVEN_FROM
from pyromq.client.admin.messages.message_life import LifeEvent
from pyromq.console.search.message_outcome import copies_of, copy_name, outcomes_of
from pyromq.message import Property, StoredMessage, encode_properties

ID = "7F" * 16


def stored(topic, at, *, failed=0, reason=None, **properties):
    properties = {Property.UNIQUE_KEY: ID, Property.RETRY_TOPIC: "orders", **properties}
    if reason:
        properties[Property.RETRY_REASON] = reason
    return StoredMessage(topic, b"x", encode_properties(properties), store_ms=at, log_offset=at, reconsume_times=failed)


def sent(at=1):
    return LifeEvent(at, "stored", "broker-a", "", stored("orders", at))


def died(at=5, failed=1, reason="ValueError: no"):
    return LifeEvent(at, "dead letter", "billing", "", stored("%DLQ%billing", at, failed=failed, reason=reason))


def parked(at, failed):
    record = stored("SCHEDULE_TOPIC_XXXX", at, failed=failed, reason="ValueError: not now", REAL_TOPIC="%RETRY%billing")
    return LifeEvent(at, "waits", "billing", "", record)


def retried(at, failed):
    record = stored("%RETRY%billing", at, failed=failed, reason="ValueError: not now")
    return LifeEvent(at, "sent back", "billing", "", record)


def redriven(at, topic, letter):
    record = stored(topic, at, **{REDRIVEN_FROM: letter.record.offset_message_id})
    return LifeEvent(at, "redriven", "billing", "", record)


def judged(what):
    return LifeEvent(None, what, "billing", "by its offset")


def called(what, at):
    return LifeEvent(at, what, "billing")


LETTER = died()


@pytest.mark.parametrize(
    ("life", "outcome", "attempts", "reason"),
    [
        ([sent(), LETTER], "gave up", 1, "ValueError: no"),
        ([sent(), died(failed=17, reason=None)], "gave up", 17, None),
        ([LETTER], "gave up", 1, "ValueError: no"),
        ([sent(), parked(2, 1)], "retried", 1, "ValueError: not now"),
        ([sent(), parked(2, 1), retried(3, 1), judged("not yet")], "retried", 1, "ValueError: not now"),
        ([sent(), parked(2, 1), retried(3, 1), judged("passed")], "consumed", 1, "ValueError: not now"),
        ([sent(), called("failed", 2), parked(3, 1), retried(4, 1), parked(5, 2)], "retried", 2, "ValueError: not now"),
        ([sent(), called("failed", 2), called("failed", 3), judged("not yet")], "failing", 2, None),
        ([sent(), called("failed", 2), parked(3, 1), called("consumed", 4)], "consumed", 1, "ValueError: not now"),
        ([sent(), called("consumed", 2), LETTER], "gave up", 1, "ValueError: no"),
        ([sent(), LETTER, redriven(6, "%RETRY%billing", LETTER)], "redriven", 1, "ValueError: no"),
        ([sent(), LETTER, redriven(6, "%RETRY%billing", LETTER), judged("passed")], "consumed", 1, "ValueError: no"),
        ([sent(), LETTER, redriven(6, "orders", LETTER), judged("not yet")], "redriven", 1, "ValueError: no"),
        ([sent(), LETTER, redriven(6, "orders", LETTER), judged("passed")], "consumed", 1, "ValueError: no"),
        ([sent(), LETTER, redriven(6, "%RETRY%billing", LETTER), died(8, 3, "KeyError")], "gave up", 3, "KeyError"),
        ([sent(), judged("not yet")], "not yet", 0, None),
        ([sent(), judged("not known")], "not known", 0, None),
        ([sent(), judged("passed")], "consumed", 0, None),
    ],
)
def test_an_outcome_follows_from_the_latest_events(life, outcome, attempts, reason):
    (found,) = outcomes_of(life)
    assert (found.group, found.outcome.value) == ("billing", outcome)
    assert (found.attempts, found.reason) == (attempts, reason)


def test_a_redriven_dead_letter_is_marked():
    assert not outcomes_of([sent(), LETTER])[0].is_redriven
    assert outcomes_of([sent(), LETTER, redriven(6, "%RETRY%billing", LETTER)])[0].is_redriven
    assert outcomes_of([sent(), LETTER, redriven(6, "orders", LETTER)])[0].is_redriven


def test_the_worst_outcome_is_first():
    life = [sent(), LifeEvent(2, "delivered", "audit"), LifeEvent(3, "consumed", "audit"), LETTER]
    assert [each.group for each in outcomes_of(life)] == ["billing", "audit"]


def test_copies_are_named_and_in_order_and_the_shown_one_is_among_them():
    shown = stored("%RETRY%billing", 4, failed=1)
    life = [LETTER, parked(2, 1), sent()]
    names = [copy_name(each) for each in copies_of(life, shown)]
    assert names == [
        "the message",
        "waiting for attempt 2 of billing",
        "attempt 2 of billing",
        "dead letter of billing",
    ]
