"""`make crash`: many seeds on all processors; a seed that fails is told with the command that replays it.

python -m tests.simulation.run 10000           seeds 0 to 9999
python -m tests.simulation.run --seed 421      one seed, with what happened in it
python -m tests.simulation.run --kind pops     a group that pops, instead of a store
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from .life import Life
from .pops import PopLife

KINDS = {"store": Life, "pops": PopLife}
PIECE = 50  # seeds given to a processor at once


def failures(first: int, count: int, kind: str = "store") -> list[tuple[int, str]]:
    """Run so many seeds; return those that fail and why."""
    logging.disable(logging.CRITICAL)  # crashes make the store talk
    failed = []
    try:
        for seed in range(first, first + count):
            life = KINDS[kind](seed)
            try:
                life.run()
            except Exception as error:  # noqa: BLE001  # whatever it is, the seed is told
                failed.append((seed, f"{type(error).__name__}: {error}"))
    finally:
        logging.disable(logging.NOTSET)
    return failed


def all_failures(first: int, count: int, kind: str) -> Iterator[tuple[int, str]]:
    """Like `failures`, on all processors; say now and then how far it is."""
    started = told = time.monotonic()
    pieces = [(at, min(PIECE, first + count - at), kind) for at in range(first, first + count, PIECE)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, failed in enumerate(pool.map(failures, *zip(*pieces, strict=True)), 1):
            yield from failed
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{done * PIECE} of {count} seeds, {told - started:.0f} s", flush=True)


def replay(seed: int, kind: str) -> None:
    """Run one seed and tell its story; raises what it raises."""
    life = KINDS[kind](seed)
    try:
        life.run()
    finally:
        print("\n".join(life.story))


def command(seed: int, kind: str = "store") -> str:
    return f"make crash SEED={seed}" + f" KIND={kind}" * (kind != "store")


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("count", type=int, nargs="?", default=1000)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seed", type=int)
    options.add_argument("--kind", choices=KINDS, default="store")
    chosen = options.parse_args()
    if chosen.seed is not None:
        replay(chosen.seed, chosen.kind)
        return 0
    started = time.monotonic()
    failed = 0
    for seed, error in all_failures(chosen.first, chosen.count, chosen.kind):
        failed += 1
        print(f"seed {seed}: {error}\n    replay it: {command(seed, chosen.kind)}", flush=True)
    print(f"{chosen.count} seeds, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
