"""Pauses between attempts, and their end."""

import asyncio

from pyromq.client.cluster.retry import LONGEST_PAUSE, Retry
from pyromq.testing import FakeClock
from pyromq.testing.fake_clock import settle


async def pauses(seconds):
    """Return when, after the first attempt, each further one may begin."""
    clock, begins = FakeClock(), []
    retry = Retry(clock, seconds)

    async def attempts():
        while await retry.pause():
            begins.append(round(clock.monotonic() - start, 3))

    start = clock.monotonic()
    task = asyncio.ensure_future(attempts())
    while not task.done():
        await settle()
        await clock.advance(0.01)
    return begins


async def test_pauses_double_up_to_half_a_second():
    begins = await pauses(3)
    assert begins[:4] == [0.02, 0.06, 0.14, 0.3]
    assert round(begins[-1] - begins[-2], 3) == LONGEST_PAUSE


async def test_no_pause_goes_over_the_deadline():
    assert await pauses(0.1) == [0.02, 0.06]
    assert await pauses(0.02) == []


async def test_an_attempt_has_a_moment_even_at_the_end():
    clock = FakeClock()
    retry = Retry(clock, 1)
    assert retry.left == 1
    await clock.advance(2)
    assert retry.left == 0.001
