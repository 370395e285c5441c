"""Five hundred seeds of random work and crashes; `make crash N=10000` runs more."""

from __future__ import annotations

import pytest

from .run import command, failures

SEEDS = 500
PIECE = 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, PIECE))
def test_no_crash_costs_what_was_confirmed(first: int) -> None:
    failed = failures(first, PIECE)
    assert not failed, "\n".join(f"seed {seed}: {error}; replay it: {command(seed)}" for seed, error in failed)
