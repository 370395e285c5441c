"""Replica sets through random accidents, others every day; `make sets N=10000` runs more."""

from __future__ import annotations

import pytest
from tests.seed import seed_of_the_day

from .faults import FAULTS, first_found
from .run import command
from .set_life import lives
from .store_machine import StoreLife

SEEDS = 100
STORE_SEEDS = 40
PIECE = 50
FIRST = seed_of_the_day() * SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, PIECE))
def test_no_accident_costs_what_was_confirmed(first: int) -> None:
    failed, happened = lives(first, PIECE)
    assert not failed, "\n".join(f"seed {seed}: {error}; replay it: {command(seed)}" for seed, error in failed)
    assert happened["elections"] > PIECE
    assert happened["confirmed bytes"] > 400 * PIECE


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + STORE_SEEDS, STORE_SEEDS // 2))
def test_no_accident_costs_what_was_confirmed_by_real_stores(first: int) -> None:
    failed, happened = lives(first, STORE_SEEDS // 2, StoreLife)
    assert not failed, "\n".join(f"seed {seed}: {error}; replay: {command(seed, StoreLife)}" for seed, error in failed)
    assert happened["elections"] > STORE_SEEDS // 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_put_in_on_purpose_is_found(fault) -> None:
    assert first_found(fault, 0, 2000) is not None


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_from_any_seed_on(fault) -> None:
    assert first_found(fault, FIRST, 2000) is not None
