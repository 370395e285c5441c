"""Messages being worked on: the offset that is safe to commit, and what may still start."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.consumer.push.listener import Listening
from pyromq.client.consumer.push.process_queue import ConsumeRequest, ProcessQueue
from pyromq.message import MessageQueue, StoredMessage

QUEUE = MessageQueue("orders", "broker-a", 0)


def filled(*sizes, start=0, now=lambda: 0.0, listener=lambda messages: None):
    """Pieces of so many messages each, from `start` on."""
    in_flight = ProcessQueue(QUEUE, start, now)
    pieces, offset = [], start
    for size in sizes:
        messages = [StoredMessage("orders", b"xy", queue_offset=offset + n) for n in range(size)]
        pieces.append(ConsumeRequest(in_flight, Listening.of(listener), messages))
        offset += size
    in_flight.add(pieces, offset)
    return in_flight, pieces


def test_without_messages_the_next_offset_is_safe():
    in_flight, _ = filled(start=7)
    assert (in_flight.safe_offset, in_flight.span, in_flight.count) == (7, 0, 0)
    in_flight.add([], 12)  # a pull that found nothing wanted on the way
    assert in_flight.safe_offset == 12


def test_the_first_piece_that_is_not_done_holds_the_offset():
    in_flight, (first, second, third) = filled(2, 3, 1)
    in_flight.finish(second)
    in_flight.finish(third)
    assert (in_flight.safe_offset, in_flight.count) == (0, 2)
    in_flight.finish(first)
    assert (in_flight.safe_offset, in_flight.count, in_flight.size) == (6, 0, 0)


def test_a_piece_may_be_done_in_part():
    in_flight, (first,) = filled(5)
    in_flight.finish(first, 2)
    assert (in_flight.safe_offset, in_flight.count, in_flight.size, in_flight.span) == (2, 3, 6, 2)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.randoms())
def test_the_safe_offset_never_passes_a_message_that_is_not_done(sizes, order):
    in_flight, pieces = filled(*sizes)
    starts = {piece: piece.first_offset for piece in pieces}
    left = list(pieces)
    order.shuffle(left)
    before = 0
    while left:
        in_flight.finish(left.pop())
        assert in_flight.safe_offset == min((starts[p] for p in left), default=sum(sizes))
        assert in_flight.safe_offset >= before
        assert in_flight.count == sum(len(p.messages) for p in left)
        before = in_flight.safe_offset
    assert not in_flight.pieces


def test_nothing_starts_once_closed_or_without_the_lock():
    calls = []
    in_flight, (piece,) = filled(1, now=lambda: 5.0, listener=calls.append)
    in_flight.allowed_until = 4.9
    assert not piece.run()
    in_flight.allowed_until = 5.0
    in_flight.closed = True
    assert not piece.run()
    assert not in_flight.running
    in_flight.closed = False
    assert piece.run()
    assert len(calls) == 1


async def test_quiet_waits_for_what_runs_and_for_nothing_else():
    in_flight, (first, _) = filled(1, 1)
    first.begin()
    quiet = asyncio.ensure_future(in_flight.quiet())
    await asyncio.sleep(0)
    assert not quiet.done()
    first.over = True
    in_flight.finish(first)
    await asyncio.wait_for(quiet, 1)
