"""Where order is kept, never two listeners at once in a queue, whatever happens to members and connections.

Every run plays another schedule, made from the seed in the test's name: six in every run of the tests, others every
day, and 200 from SOAK_SEED on, by default from the time of day, in `make soak`.
"""

import os
import time

import pytest
from tests.seed import seed_of_the_day

from .run import play

FIRST_SEED = int(os.environ.get("SOAK_SEED", str(int(time.time()))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10 * seed_of_the_day(), 10 * seed_of_the_day() + 6))
async def test_one_listener_per_queue_and_in_order(seed):
    await check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 200))
async def test_one_listener_per_queue_and_in_order_over_many_schedules(seed):
    await check(seed)


async def check(seed):
    run = await play(seed)
    story = "\n".join(sorted([*run.trace, *run.observer.faults]))
    assert not run.observer.faults, f"seed {seed}:\n{story}"
    assert run.rough or not run.observer.repeats, (
        f"seed {seed}: {run.observer.repeats} repeats without a reason\n{story}"
    )
