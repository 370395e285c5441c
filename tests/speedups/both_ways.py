"""Plays the same load with and without compiled parts, and compares every byte that the broker sends and stores.

    python -m tests.speedups.both_ways [--seed SEED] [--rounds N] [--steps N] [--keep FOLDER]

Also: the answers to questions about statistics, and the lines of the broker's log.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
from tests.seed import seed_of_the_day
from tests.speedups.load import Load, load_of
from tests.speedups.play import Seen

ROOT = Path(__file__).parent.parent.parent
STEPS = 300
PLAIN, COMPILED = "plain", "compiled"


def difference(seed: int, steps: int, folder: Path, number: int = 0) -> str | None:
    """Play the load of a seed both ways in an empty folder; return the first difference, None if there is none.

    Every fourth seed has a dense load; every third one's broker flushes before it answers; every fifth one's has a
    follower.
    """
    load = load_of(seed, steps, is_dense=seed % 4 == 0, is_flushed=seed % 3 == 0, is_replicated=seed % 5 == 0)
    seen = {way: _play(load, folder, way, _host(number)) for way in (PLAIN, COMPILED)}
    assert [seen[PLAIN].is_compiled, seen[COMPILED].is_compiled] == [False, True], "build the compiled parts first"
    return next(_differences(load, seen[PLAIN], seen[COMPILED], folder), None)


def _host(number: int) -> str:
    """Return an address of the loopback that nobody else uses: both ways need the same one, and its ports."""
    return f"127.{64 + (os.getpid() >> 8) % 128}.{os.getpid() % 256}.{1 + number % 250}"


def _play(load: Load, folder: Path, way: str, host: str) -> Seen:
    file, result = folder / "load", folder / f"{way}.seen"
    file.write_bytes(msgspec.msgpack.encode(load))
    environment = os.environ | {"PYROMQ_PURE": "1" if way == PLAIN else "0", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.speedups.play", file, folder / way, host, result]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{way}, seed {load.seed}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return msgspec.json.decode(result.read_bytes(), type=Seen)


def _differences(load: Load, plain: Seen, compiled: Seen, folder: Path) -> Iterator[str]:
    for name in sorted(plain.frames.keys() | compiled.frames.keys()):
        frames = plain.frames.get(name, []), compiled.frames.get(name, [])
        for number in range(max(map(len, frames))):
            one, other = (each[number] if number < len(each) else (-1, "nothing") for each in frames)
            if one[1] != other[1]:
                step = next(number for number in (one[0], other[0]) if number >= 0)
                yield (
                    f"connection {name}, answer {number}, step {one[0]}/{other[0]}: {load.steps[step : step + 1]}\n"
                    + _both(_readable(one[1]), _readable(other[1]))
                )
    only = [Counter(one.log) - Counter(other.log) for one, other in ((plain, compiled), (compiled, plain))]
    if any(only):
        yield "lines of the broker's log\n" + _both(*("\n            ".join(lines.elements()) for lines in only))
    for question in plain.figures.keys() | compiled.figures.keys():
        answers = plain.figures.get(question), compiled.figures.get(question)
        if answers[0] != answers[1]:
            yield f"{question}\n" + _both(*map(str, answers))
    yield from _different_files(folder / PLAIN, folder / COMPILED)


def _different_files(plain: Path, compiled: Path) -> Iterator[str]:
    for name in sorted(set(_files(plain)) | set(_files(compiled))):
        one, other = (_content(way / name).rstrip(b"\0") for way in (plain, compiled))  # zeros: allocated, not used
        if one != other:
            length = min(len(one), len(other))
            at = next((at for at in range(length) if one[at] != other[at]), length)
            parts = (each[max(at - 100, 0) : at + 100] for each in (one, other))
            yield f"file {name}, byte {at} of {len(one)} and {len(other)}\n" + _both(*map(repr, parts))


def _files(folder: Path) -> list[str]:
    """Return all but those whose content depends on when a thread comes.

    These are tables as they were before, copied timers, and the journal of pops: its records have no certain order.
    """
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".bak")
    return [str(path.relative_to(folder)) for path in paths if path.parent.name not in ("timers", "pops")]


def _content(file: Path) -> bytes:
    if not file.exists():
        return b""
    if file.name in (
        "consumerOffset.json",
        "delayOffset.json",
    ):  # noted by threads: in any order, at any end of the log
        table = json.loads(file.read_bytes())["offsetTable"]
        return json.dumps(table, sort_keys=True).encode()
    return file.read_bytes()


def _readable(frame: str) -> str:
    return repr(bytes.fromhex(frame)) if frame[:1].isdigit() else frame


def _both(plain: str, compiled: str) -> str:
    return f"  plain:    {plain[:3000]}\n  compiled: {compiled[:3000]}"


def _folder(kept: Path | None) -> AbstractContextManager[str | Path]:
    if kept is None:
        return tempfile.TemporaryDirectory(prefix="both-ways-")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    return nullcontext(kept)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=seed_of_the_day())
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--keep", type=Path, help="where the last round's files stay")
    chosen = options.parse_args()
    failed = 0
    started = time.monotonic()
    for number, seed in enumerate(range(chosen.seed, chosen.seed + chosen.rounds)):
        with _folder(chosen.keep) as folder:
            found = difference(seed, chosen.steps, Path(folder), number)
        if found:
            failed += 1
            print(f"seed {seed}, {chosen.steps} steps: {found}", flush=True)
    print(f"{chosen.rounds} loads both ways, {failed} differ, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
