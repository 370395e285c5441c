"""The same load played with and without compiled parts: the same answers, files, figures and lines of the log.

BOTH_WAYS_SEED repeats a load that was told; BOTH_WAYS_ROUNDS is how many `make soak` plays.
"""

from __future__ import annotations

import os

import pytest
from tests.seed import seed_of_the_day
from tests.speedups.both_ways import difference

from pyromq.speedups import UNITS

for unit in UNITS:
    pytest.importorskip(f"pyromq.speedups.{unit}", reason="the compiled parts are not built")

SEED = int(os.environ.get("BOTH_WAYS_SEED") or seed_of_the_day())
ROUNDS = int(os.environ.get("BOTH_WAYS_ROUNDS") or 40)


@pytest.mark.parametrize("seed", [SEED, SEED - SEED % 3, SEED - SEED % 5], ids=["drawn", "flushed", "replicated"])
def test_load_looks_the_same_both_ways(tmp_path, seed):
    found = difference(seed, 100, tmp_path)
    assert found is None, f"python -m tests.speedups.both_ways --seed {seed} --steps 100\n{found}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_long_load_looks_the_same_both_ways(tmp_path, number):
    found = difference(SEED + number, 300, tmp_path, number)
    assert found is None, f"python -m tests.speedups.both_ways --seed {SEED + number}\n{found}"
