"""What a listener's answer means, and how listeners are told apart."""

from functools import partial

import pytest

from pyromq.client.consumer.push.listener import (
    LONGEST_REASON,
    TO_DEAD_LETTERS,
    Ack,
    BoundListener,
    GiveUp,
    RetryLater,
    judge,
)
from pyromq.errors import UsageError


@pytest.mark.parametrize("returned", [None, Ack.DONE, Ack.COMMIT, Ack.ROLLBACK])
def test_nothing_and_acks_mean_done(returned):
    verdict = judge(3, returned, None)
    assert (verdict.done, verdict.ack, verdict.error) == (3, returned or Ack.DONE, None)


@pytest.mark.parametrize("returned", [True, False, 0, 3, "ok", [], object()])
def test_everything_else_returned_is_a_failure(returned):
    verdict = judge(3, returned, None)
    assert verdict.done == 0
    assert isinstance(verdict.error, UsageError)


def test_an_exception_fails_everything_and_is_the_reason():
    error = KeyError("customer")
    verdict = judge(3, None, error)
    assert (verdict.done, verdict.reason, verdict.error) == (0, "KeyError: 'customer'", error)


@pytest.mark.parametrize(("done", "counted"), [(0, 0), (2, 2), (9, 3), (-4, 0)])
def test_retry_later_says_how_many_are_done(done, counted):
    verdict = judge(3, None, RetryLater("busy", done=done, delay_level=5, seconds=0.5))
    assert (verdict.done, verdict.delay_level, verdict.seconds, verdict.error) == (counted, 5, 0.5, None)


def test_giving_up_skips_the_retries():
    assert judge(1, None, GiveUp("hopeless")).delay_level == TO_DEAD_LETTERS


def test_a_reason_is_one_short_line_that_a_property_can_hold():
    reason = judge(1, None, ValueError("a\x01b\x02c\nd" + "e" * 2000)).reason
    assert reason.startswith("ValueError: a b c d")
    assert len(reason) <= LONGEST_REASON
    assert reason.isprintable()


async def work(messages, extra=None):
    pass


class AsyncCall:
    async def __call__(self, messages):
        pass

    async def method(self, messages):
        pass


@pytest.mark.parametrize(
    ("listener", "in_task"),
    [
        (print, False),
        (lambda messages: None, False),
        ([].append, False),
        (work, True),
        (partial(work, extra=1), True),
        (partial(print), False),
        (AsyncCall(), True),
        (AsyncCall().method, True),
    ],
)
def test_async_listeners_are_known_in_all_their_forms(listener, in_task):
    assert BoundListener.of(listener).in_task is in_task


def test_what_cannot_be_called_is_no_listener():
    with pytest.raises(UsageError, match=r"function of \(messages\), not 'work'"):
        BoundListener.of("work")
