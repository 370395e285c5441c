"""Where order is kept, never two listeners at once in a queue, whatever happens to members and connections.

Every run plays another schedule, made from the seed in the test's name: SOAK_RUNS of them from SOAK_SEED on.
"""

import os

import pytest

from .run import play

RUNS = int(os.environ.get("SOAK_RUNS", "10"))
FIRST_SEED = int(os.environ.get("SOAK_SEED", "1"))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
async def test_one_listener_per_queue_and_in_order(seed):
    run = await play(seed)
    story = "\n".join(sorted([*run.trace, *run.observer.faults]))
    assert not run.observer.faults, f"seed {seed}:\n{story}"
    assert run.rough or not run.observer.repeats, (
        f"seed {seed}: {run.observer.repeats} repeats without a reason\n{story}"
    )
