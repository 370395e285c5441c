"""Few files lie between a request's bytes and its reply's, and between a message's two ends: as `make walk` counts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_FILES = {"send": 20, "pull": 17, "push": 20, "close": 32, "life": 42}  # in plain Python
MAX_CALLS_OF_A_LIFE = 400


@pytest.mark.slow  # a broker and clients, and half a second of rest after each walk
def test_walks_are_short():
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "walk.py"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    rows = re.findall(r"^\| (\w+).* \| (\d+) \| ([\d,]+) \|$", printed, re.MULTILINE)
    files = {name: int(count) for name, count, _ in rows}
    assert files.keys() == MAX_FILES.keys()
    assert {name: count for name, count in files.items() if count > MAX_FILES[name]} == {}
    assert int(rows[-1][2].replace(",", "")) <= MAX_CALLS_OF_A_LIFE
