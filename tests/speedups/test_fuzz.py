"""The short form of `make sanitize`: random input for compiled units and plain Python, by the seed of the day."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.seed import seed_of_the_day

pytest.importorskip("pyromq.speedups.codec", reason="the compiled parts are not built")


def test_units_make_of_random_input_what_plain_python_does():
    command = [sys.executable, "-m", "tests.speedups.fuzz", "8000", "--seed", str(seed_of_the_day() * 100_000)]
    environment = os.environ | {"PYROMQ_PURE": "1"}
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("8000 rounds")
