"""Delayed messages, cancels and transactions of a broker that is killed at any write, and started again.

No confirmed message is lost or early, none comes whose cancel was confirmed, none that was rolled back, and every
committed one comes once. Each run plays 500 operations as its seed says: one with some of the kills in every run of
the tests, another every day; in `make crashes` one with all kills, from CRASH_SEED on as many as CRASH_RUNS says.
"""

import os
import random
import shutil
import time

import pytest
from tests.seed import seed_of_the_day

from .afterlife import Afterlife
from .life import live

FIRST_SEED = int(os.environ.get("CRASH_SEED", str(int(time.time()))))
RUNS = int(os.environ.get("CRASH_RUNS", "1"))
AGAIN = 0.1  # of the brokers that go on are killed again
WRITES = 300  # of those one is a kill, of a broker that goes on


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed_of_the_day()])
async def test_promises_are_kept_over_some_kills(tmp_path, seed):
    await check(tmp_path, seed, every=500)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
async def test_promises_are_kept_over_a_kill_at_every_write(tmp_path, seed):
    await check(tmp_path, seed, every=1)


async def check(folder, seed, *, every):
    print(f"to play this run again: make crashes CRASH_SEED={seed}")
    history, moments = await live(folder / "live", seed, every=every)
    assert len(moments) > 10
    chance, outcomes = random.Random(f"again {seed}"), len(moments)
    for number, moment in enumerate(moments):
        killed_again = chance.random() < AGAIN
        later = await outcome(folder / f"{number}", history, moment, every=WRITES if killed_again else None)
        outcomes += len(later)
        for number_again, moment_again in enumerate(later):
            await outcome(folder / f"{number}-{number_again}", history, moment_again)
    print(f"{outcomes} brokers started where one was killed")


async def outcome(folder, history, moment, *, every=None):
    """Let a broker go on where another was killed; return the moments at which it may be killed itself."""
    life = Afterlife(history, moment)
    await life.run(folder, **({} if every is None else {"every": every}))
    assert not life.faults, f"killed at step {moment.step}, see {folder.name}:\n" + "\n".join(life.faults)
    shutil.rmtree(folder)
    return life.moments
