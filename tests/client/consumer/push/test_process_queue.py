"""Messages being worked on: the offset that is safe to commit, and what may still start."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.consumer.push.listener import BoundListener
from pyromq.client.consumer.push.process_queue import OPEN, WAITING, ConsumeRequest, ProcessQueue
from pyromq.message import MessageQueue, StoredMessage

QUEUE = MessageQueue("orders", "broker-a", 0)


def filled(*sizes, start=0, now=lambda: 0.0, listener=lambda messages: None):
    """Requests of so many messages each, from `start` on."""
    process_queue = ProcessQueue(QUEUE, start, now)
    requests, offset = [], start
    for size in sizes:
        messages = [StoredMessage("orders", b"xy", queue_offset=offset + n) for n in range(size)]
        requests.append(ConsumeRequest(process_queue, BoundListener.of(listener), messages))
        offset += size
    process_queue.add(requests, offset)
    return process_queue, requests


def test_without_messages_the_next_offset_is_safe():
    process_queue, _ = filled(start=7)
    assert (process_queue.safe_offset, process_queue.span, process_queue.count) == (7, 0, 0)
    process_queue.add([], 12)  # a pull that found nothing wanted on the way
    assert process_queue.safe_offset == 12


def test_the_first_request_that_is_not_done_holds_the_offset():
    process_queue, (first, second, third) = filled(2, 3, 1)
    process_queue.finish(second)
    process_queue.finish(third)
    assert (process_queue.safe_offset, process_queue.count) == (0, 2)
    process_queue.finish(first)
    assert (process_queue.safe_offset, process_queue.count, process_queue.size) == (6, 0, 0)


def test_a_request_may_be_done_in_part():
    process_queue, (first,) = filled(5)
    process_queue.finish(first, 2)
    assert (process_queue.safe_offset, process_queue.count, process_queue.size, process_queue.span) == (2, 3, 6, 2)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.randoms())
def test_the_safe_offset_never_passes_a_message_that_is_not_done(sizes, order):
    process_queue, requests = filled(*sizes)
    starts = {request: request.first_offset for request in requests}
    left = list(requests)
    order.shuffle(left)
    before = 0
    while left:
        process_queue.finish(left.pop())
        assert process_queue.safe_offset == min((starts[p] for p in left), default=sum(sizes))
        assert process_queue.safe_offset >= before
        assert process_queue.count == sum(len(p.messages) for p in left)
        before = process_queue.safe_offset
    assert not process_queue.requests


def test_nothing_starts_once_closed_or_without_the_lock():
    calls = []
    process_queue, (request,) = filled(1, now=lambda: 5.0, listener=calls.append)
    process_queue.allowed_until = 4.9
    assert not request.run()
    process_queue.allowed_until = 5.0
    process_queue.close()
    assert not request.run()
    assert not process_queue.running
    process_queue.state = OPEN
    assert request.run()
    assert len(calls) == 1


async def test_quiet_waits_for_what_runs_and_for_nothing_else():
    process_queue, (first, _) = filled(1, 1)
    first.begin()
    quiet = asyncio.ensure_future(process_queue.drain())
    await asyncio.sleep(0)
    assert not quiet.done()
    first.state = WAITING
    process_queue.finish(first)
    await asyncio.wait_for(quiet, PATIENCE_SECONDS)
