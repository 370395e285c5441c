"""`make sets`: many seeds of a replica set on all processors; prints for a failed seed the command that replays it.

python -m tests.simulation.sets.run 10000           seeds 0 to 9999
python -m tests.simulation.sets.run --seed 421      one seed, with what happened in it
python -m tests.simulation.sets.run --stores 1000   with real message stores on simulated disks
python -m tests.simulation.sets.run --faults        faults put in on purpose, each until it is found
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from .faults import FAULTS, first_found
from .set_life import SetLife, lives
from .store_machine import StoreLife

PIECE = 50  # seeds given to a processor at once


def all_lives(
    first: int, count: int, life_class: type[SetLife]
) -> Iterator[tuple[list[tuple[int, str]], Counter[str]]]:
    """Like `lives`, on all processors."""
    pieces = [(at, min(PIECE, first + count - at)) for at in range(first, first + count, PIECE)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lives, *zip(*pieces, strict=True), [life_class] * len(pieces))


def replay(seed: int, life_class: type[SetLife]) -> None:
    """Run one seed and tell its story; raises what it raises."""
    life = life_class(seed)
    try:
        life.run()
    finally:
        print("\n".join(life.story))


def search_faults(seeds: int) -> int:
    """Print when each fault is found that is put in on purpose; return how many are not."""
    missed = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for fault, found in zip(
            FAULTS, pool.map(_search_fault, range(len(FAULTS)), [seeds] * len(FAULTS)), strict=True
        ):
            missed += found is None
            print(f"{fault.__name__}: {f'seed {found[0]}: {found[1]}' if found else 'not found'}", flush=True)
    return missed


def _search_fault(number: int, seeds: int) -> tuple[int, str] | None:
    return first_found(FAULTS[number], 0, seeds)


def command(seed: int, life_class: type[SetLife] = SetLife) -> str:
    return f"make sets SEED={seed}" + (" STORES=1" if life_class is StoreLife else "")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("count", type=int, nargs="?", default=1000)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seed", type=int)
    options.add_argument("--faults", action="store_true")
    options.add_argument("--stores", action="store_true")
    chosen = options.parse_args()
    if chosen.faults:
        return search_faults(chosen.count)
    life_class = StoreLife if chosen.stores else SetLife
    if chosen.seed is not None:
        replay(chosen.seed, life_class)
        return 0
    started = told = time.monotonic()
    failures = 0
    total: Counter[str] = Counter()
    for failed, happened in all_lives(chosen.first, chosen.count, life_class):
        total += happened
        for seed, error in failed:
            failures += 1
            print(f"seed {seed}: {error}\n    replay it: {command(seed, life_class)}", flush=True)
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{total['lives']} of {chosen.count} lives, {told - started:.0f} s", flush=True)
    counts = ", ".join(f"{count:,} {what}" for what, count in total.items())
    print(f"{counts}; {failures} failed, {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
